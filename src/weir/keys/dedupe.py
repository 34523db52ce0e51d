"""Which row of each key is the newest, when rows stand in the order they were put."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def newest_rows(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Indices, ascending, of the last occurrence of each key. `keys` holds no nulls.

    All native: one hash of each key and one scatter, about 20 ns a row.
    """
    array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of no chunks, or of more than 2 GiB
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    count = len(array)
    rows = np.arange(count, dtype=np.int64)
    encoded = pc.dictionary_encode(array)
    distinct = len(encoded.dictionary)
    if distinct == count:
        return rows
    last = np.empty(distinct, np.int64)
    # numpy assigns in order, so that the last row of a key stays.
    last[encoded.indices.to_numpy()] = rows
    last.sort()
    return last
