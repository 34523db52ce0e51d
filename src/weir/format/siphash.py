"""SipHash-1-3 with key (0, 0) over many rows of bytes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.format.columns import VarBytes

_MASK = (1 << 64) - 1
_INIT = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_FEW_ROWS = 4
_BLOCK_ROWS = 8192
"""Rows per block in `siphash13_ints`: state and scratch stay in the processor's cache."""

_U64 = npt.NDArray[np.uint64]
_State = list[Any]


def siphash13(rows: VarBytes) -> _U64:
    """The 64-bit hash of each row, computed word by word over all rows, the longest first."""
    count = len(rows.lengths)
    order = np.argsort(-rows.lengths, kind="stable")
    starts, lengths = rows.starts[order], rows.lengths[order]
    # With eight zero bytes after the data, the last, partial word can be read whole and masked.
    data = np.concatenate([rows.data, np.zeros(8, np.uint8)])
    words: _U64 = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    state = [np.full(count, init, np.uint64) for init in _INIT]
    whole = lengths >> 3
    steps = np.searchsorted(-whole, -np.arange(int(whole[0]) if count else 0), side="left")
    for step, active in enumerate(steps):
        if active <= _FEW_ROWS:
            for row in range(active):
                rest = words[starts[row] + 8 * step : starts[row] + 8 * int(whole[row]) : 8]
                _compress_one_row(state, row, rest.tolist())
            break
        part = [v[:active] for v in state]
        _compress(part, words[starts[:active] + 8 * step], _rotate_array)
        for v, new in zip(state, part, strict=True):
            v[:active] = new
    tail_bits = ((lengths & 7) * 8).astype(np.uint64)
    last = words[starts + 8 * whole] & ((np.uint64(1) << tail_bits) - np.uint64(1))
    last |= lengths.astype(np.uint64) << np.uint64(56)
    _compress(state, last, _rotate_array)
    state[2] = state[2] ^ np.uint64(0xFF)
    for _ in range(3):
        _round(state, _rotate_array)
    out = np.empty(count, np.uint64)
    out[order] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return out


def siphash13_ints(values: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> _U64:
    """The hash of a zero byte and the value's own bytes, little-endian: for integer keys, which
    most tables have.

    The words are computed from the values instead of being laid out in memory, and the state is
    updated in place: 100 000 keys take 5 ms, against 30 ms through `siphash13` (one core).
    """
    out = np.empty(len(values), np.uint64)
    width = values.dtype.itemsize
    for start in range(0, len(values), _BLOCK_ROWS):
        part = values[start : start + _BLOCK_ROWS]
        if width == 8:
            bits = part.view(np.uint64)
            words = [bits << np.uint64(8), bits >> np.uint64(56)]
        else:
            words = [part.view(np.uint32).astype(np.uint64) << np.uint64(8)]
        words[-1] |= np.uint64((width + 1) << 56)
        state = [np.full(len(part), init, np.uint64) for init in _INIT]
        spare = np.empty(len(part), np.uint64)
        for word in words:
            state[3] ^= word
            _round_in_place(state, spare)
            state[0] ^= word
        state[2] ^= np.uint64(0xFF)
        for _ in range(3):
            _round_in_place(state, spare)
        state[0] ^= state[1]
        state[0] ^= state[2]
        np.bitwise_xor(state[0], state[3], out=out[start : start + _BLOCK_ROWS])
    return out


def _round_in_place(state: list[_U64], spare: _U64) -> None:
    v0, v1, v2, v3 = state
    v0 += v1
    _rotate_in_place(v1, 13, spare)
    v1 ^= v0
    _rotate_in_place(v0, 32, spare)
    v2 += v3
    _rotate_in_place(v3, 16, spare)
    v3 ^= v2
    v0 += v3
    _rotate_in_place(v3, 21, spare)
    v3 ^= v0
    v2 += v1
    _rotate_in_place(v1, 17, spare)
    v1 ^= v2
    _rotate_in_place(v2, 32, spare)


def _rotate_in_place(v: _U64, bits: int, spare: _U64) -> None:
    np.right_shift(v, np.uint64(64 - bits), out=spare)
    np.left_shift(v, np.uint64(bits), out=v)
    v |= spare


def _compress(state: _State, word: Any, rotate: Callable[[Any, int], Any]) -> None:
    state[3] = state[3] ^ word
    _round(state, rotate)
    state[0] = state[0] ^ word


def _round(state: _State, rotate: Callable[[Any, int], Any]) -> None:
    v0, v1, v2, v3 = state
    v0 = v0 + v1
    v1 = rotate(v1, 13) ^ v0
    v0 = rotate(v0, 32)
    v2 = v2 + v3
    v3 = rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = rotate(v1, 17) ^ v2
    v2 = rotate(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotate_array(v: _U64, bits: int) -> _U64:
    return (v << np.uint64(bits)) | (v >> np.uint64(64 - bits))


def _rotate_int(v: int, bits: int) -> int:
    v &= _MASK
    return (v << bits | v >> (64 - bits)) & _MASK


def _compress_one_row(state: _State, row: int, words: list[int]) -> None:
    """Hash the rest of one very long row; plain integers are faster than arrays of length 1."""
    one: _State = [int(v[row]) for v in state]
    for word in words:
        _compress(one, word, _rotate_int)
        one[:] = [v & _MASK for v in one]
    for v, new in zip(state, one, strict=True):
        v[row] = new
