"""The kinds of numpy arrays that searches work with."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Matrix: TypeAlias = npt.NDArray[np.floating[Any]]
"""float64 for vectors of doubles, else float32."""
