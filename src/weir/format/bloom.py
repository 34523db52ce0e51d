"""The Bloom filter of an SSTable: split blocks as in Parquet, in the one size pylance writes.

32768 bytes without a header: 1024 blocks of eight 32-bit words, one bit per word and key, placed by
SipHash-1-3 (key 0, 0) of the key columns. The size never grows, so the filter saturates: at 100 000
keys it answers 'perhaps' to 69 % of the keys that are not there, at 200 000 to 98 %.

Trap: for any key type but int32, int64, utf8 and binary pylance hashes only whether the value is
null. A lookup by the hash of such a value would test bits that the writer never meant to set, so
the filter always answers 'perhaps' for these types (`trusted` tells the two cases apart).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CorruptEntry
from weir.format.columns import fixed_binary, fixed_values, join_bytes, plain_array, var_values
from weir.format.siphash import siphash13, siphash13_ints

# Stored. Never change a value.
BLOCKS: Final = 1024
BLOOM_BYTES: Final = BLOCKS * 32
FULL: Final = b"\xff" * BLOOM_BYTES
"""The stored filter that answers 'perhaps' to every key."""
USEFUL_KEYS: Final = 80_000
"""Up to this many keys, a filter excludes at least half of the keys that were not inserted."""
_SALT = np.array(
    [
        *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
        *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
    ],
    np.uint32,
)


_BLOCK_ROWS: Final = 16_384
_INTEGERS: Final[dict[pa.DataType, npt.DTypeLike]] = {
    pa.int32(): np.dtype("<i4"),
    pa.int64(): np.dtype("<i8"),
}


def trusted(key_types: Iterable[pa.DataType]) -> bool:
    """Whether a filter over key columns of these types excludes any key."""
    return all(_is_hashed(dtype) for dtype in key_types)


def _is_hashed(dtype: pa.DataType) -> bool:
    return dtype in (pa.int32(), pa.int64(), pa.string(), pa.binary())


class BloomFilter:
    """The keys that may be in an SSTable. Not thread-safe while keys are inserted."""

    def __init__(self) -> None:
        self._words = np.zeros(BLOCKS * 8, np.uint32)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, *, path: str = "bloom_filter.bin") -> Self:
        """The stored filter, or `CorruptEntry` for one of another size."""
        if len(data) != BLOOM_BYTES:
            raise CorruptEntry(
                f"{path} has {len(data)} bytes; a Bloom filter has {BLOOM_BYTES}. Delete the file:"
                " reads work without it, a little slower, until compaction folds the SSTable"
            )
        made = cls()
        made._words = np.frombuffer(data, "<u4").astype(np.uint32)
        return made

    def to_bytes(self) -> bytes:
        """The stored form."""
        return self._words.astype("<u4").tobytes()

    def insert(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add the key of each row; `columns` are the key columns in key order."""
        # A byte for each bit, and the keys' words one after the other: half the time of handling
        # all eight words of each key at once. Blocks of keys stay in the processor's cache.
        mask = np.zeros(BLOCKS * 256, np.bool_)
        hashes = key_hashes(columns)
        for start in range(0, len(hashes), _BLOCK_ROWS):
            part = hashes[start : start + _BLOCK_ROWS]
            first = (((part >> np.uint64(32)) * np.uint64(BLOCKS)) >> np.uint64(32)) << np.uint64(8)
            low = part.astype(np.uint32)
            for word, salt in enumerate(_SALT):
                bits = ((low * salt) >> np.uint32(27)) | np.uint32(word * 32)
                mask[(first | bits).view(np.int64)] = True
        self._words |= np.packbits(mask, bitorder="little").view("<u4")

    def might_contain(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
        """False where the key of a row was certainly never inserted."""
        if not trusted(column.type for column in columns):
            return np.ones(len(columns[0]), np.bool_)
        words, bits = _places(key_hashes(columns))
        is_set = (self._words[words] >> bits.astype(np.uint32)) & np.uint32(1)
        found: npt.NDArray[np.bool_] = np.all(is_set, axis=1)
        return found


def _places(
    hashes: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The eight words of each key, and the bit in each word."""
    blocks = ((hashes >> np.uint64(32)) * np.uint64(BLOCKS)) >> np.uint64(32)
    words = blocks.astype(np.int64)[:, None] * 8 + np.arange(8)
    low = hashes.astype(np.uint32)
    bits = (low[:, None] * _SALT) >> np.uint32(27)
    return words, bits.astype(np.int64)


def key_hashes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.uint64]:
    """SipHash-1-3 of each row's key, as pylance computes it (see the trap above)."""
    arrays = [plain_array(column) for column in columns]
    if len(arrays) == 1 and arrays[0].type in _INTEGERS and not arrays[0].null_count:
        return siphash13_ints(fixed_values(arrays[0], _INTEGERS[arrays[0].type]))
    parts: list[pa.Array | bytes] = []
    for array in arrays:
        value = _value_parts(array)
        if array.null_count:
            null = pa.scalar(b"\1", pa.binary())
            value = [pc.if_else(array.is_null(), null, join_bytes(value))]
        parts.extend(value)
    return siphash13(var_values(join_bytes(parts)))


def _value_parts(array: pa.Array) -> list[pa.Array | bytes]:
    """The hashed bytes of a value that is not null."""
    dtype = array.type
    if dtype in (pa.int32(), pa.int64()):
        width = dtype.bit_width // 8
        rows = np.zeros((len(array), width + 1), np.uint8)
        values = fixed_values(array, np.dtype(f"<i{width}"))
        rows[:, 1:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
        return [fixed_binary(rows)]
    if dtype == pa.string():
        return [b"\0", array.cast(pa.binary()), b"\xff"]
    if dtype == pa.binary():
        lengths = pc.fill_null(pc.binary_length(array), 0).cast(pa.int64())
        rows = fixed_values(lengths, "<i8").view(np.uint8).reshape(-1, 8)
        return [b"\0", fixed_binary(rows), array]
    return [fixed_binary(np.zeros((len(array), 1), np.uint8))]
