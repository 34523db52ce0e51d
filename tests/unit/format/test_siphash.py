"""The fast hash of integer keys is the general hash of the same bytes."""

import numpy as np
import pyarrow as pa
import pytest

from weir.format.columns import fixed_binary, var_values
from weir.format.siphash import siphash13, siphash13_ints


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193])
def test_integers_hash_as_their_bytes_do(dtype, count):
    limits = np.iinfo(dtype)
    values = np.random.default_rng(count).integers(limits.min, limits.max, count, dtype=dtype)
    width = values.dtype.itemsize
    rows = np.zeros((count, width + 1), np.uint8)
    rows[:, 1:] = values.view(np.uint8).reshape(-1, width)
    assert (siphash13_ints(values) == siphash13(var_values(fixed_binary(rows)))).all()


def test_a_known_hash():
    assert siphash13_ints(pa.array([42]).to_numpy())[0] == 0x93C45F51B62F6D54
