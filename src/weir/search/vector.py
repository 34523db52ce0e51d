"""Exact distances to vectors in memory, as Lance measures them.

l2 is the squared Euclidean distance, cosine is 1 - cos, dot is 1 - dot product; smaller is nearer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import InvalidInput
from weir.search.arrays import Floats, Ints, Matrix

METRICS: Final = ("l2", "cosine", "dot")
_SLACK: Final = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-14}
"""Relative error of a distance from products, times the root of the dimension."""
_SMALL: Final = 1e-30
"""Squared lengths below this have lost digits as float32."""

PART_BYTES: Final = 32 << 10
"""Parts of at least this size are not joined: an additional product costs 4 microseconds."""


@dataclass(frozen=True)
class VectorBlock:
    """Vectors of some rows, in order. Immutable."""

    parts: tuple[Matrix, ...]
    """The vectors. Large batches are not copied, since touching new memory takes longer than
    computing the distances."""
    norms: Matrix
    """Squared length of each vector; NaN for a row without a vector."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.norms)

    def vectors(self, numbers: Ints) -> Matrix:
        """The vectors of some rows, by ascending row numbers."""
        ends = np.cumsum([len(part) for part in self.parts])
        cuts = np.searchsorted(numbers, ends)
        found = []
        first = begin = 0
        for part, end, cut in zip(self.parts, ends.tolist(), cuts.tolist(), strict=True):
            found.append(part[numbers[begin:cut] - first])
            first, begin = end, cut
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)


def vector_block(vectors: pa.Array) -> VectorBlock:
    """The vectors of a fixed-size list column; those of floats and doubles are not copied."""
    width = vectors.type.list_size
    flat = vectors.values.slice(vectors.offset * width, len(vectors) * width)
    values = flat.to_numpy(zero_copy_only=False).reshape(len(vectors), width)
    values = values.astype(_number_type(vectors.type), copy=False)
    norms = np.einsum("ij,ij->i", values, values)
    if vectors.null_count:
        norms = np.where(vectors.is_valid().to_numpy(zero_copy_only=False), norms, np.nan)
    return VectorBlock((values,), norms)


def vectors_of(arrays: Sequence[pa.Array]) -> VectorBlock:
    """The vectors of a column, batch by batch; small batches are joined into larger ones."""
    groups = _in_parts(arrays)
    blocks = [vector_block(g[0] if len(g) == 1 else pa.concat_arrays(g)) for g in groups]
    norms = [block.norms for block in blocks] or [np.zeros(0, np.float32)]
    return VectorBlock(
        tuple(part for block in blocks for part in block.parts), np.concatenate(norms)
    )


def _in_parts(pieces: Sequence[pa.Array]) -> Iterator[list[pa.Array]]:
    """Group neighbours that are worth joining; a piece that is large enough stays alone."""
    group: list[pa.Array] = []
    nbytes = 0
    for piece in pieces:
        size = piece.nbytes
        if size >= PART_BYTES and group:
            yield group
            group, nbytes = [], 0
        group.append(piece)
        nbytes += size
        if nbytes >= PART_BYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def query_vectors(query: Any, dtype: pa.DataType, column: str) -> tuple[list[Matrix], bool]:
    """The query as vectors, and whether it is a batch; `InvalidInput` if it does not fit."""
    if isinstance(query, pa.Array | pa.ChunkedArray | pa.Scalar):
        query = query.to_pylist() if not isinstance(query, pa.Scalar) else query.as_py()
    try:
        vectors = np.asarray(query, _number_type(dtype))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a search in {column!r} takes a vector of numbers, or several of the same length:"
            f" {error}"
        ) from error
    is_batch = vectors.ndim == 2 and len(vectors) > 0
    if vectors.ndim not in (1, 2) or vectors.shape[-1] != dtype.list_size or not len(vectors):
        raise InvalidInput(
            f"column {column!r} has vectors of {dtype.list_size} numbers, but the query has shape"
            f" {vectors.shape}"
        )
    if not np.isfinite(vectors).all():
        raise InvalidInput(f"the query for {column!r} holds a number that is not finite")
    return (list(vectors), True) if is_batch else ([vectors], False)


def _number_type(vectors: pa.DataType) -> type[np.floating[Any]]:
    return np.float64 if pa.types.is_float64(vectors.value_type) else np.float32


def rough_distances(block: VectorBlock, query: Matrix, metric: str) -> Matrix:
    """Distances by matrix-vector products, accurate to `slack`; NaN without a vector.

    Minus infinity where the products overflow or lose digits: only `exact_distances` knows those.
    """
    # Not `@`: on a busy machine BLAS threads wait for each other, up to 200 ms for 0.1 ms of work.
    dots = np.empty(block.rows, query.dtype)
    start = 0
    for part in block.parts:
        end = start + len(part)
        np.einsum("ij,j->i", part, query, out=dots[start:end])
        start = end
    norms, length = block.norms, np.einsum("i,i", query, query)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if metric == "dot":
            rough = 1 - dots
        elif metric == "cosine":
            rough = 1 - dots / (np.sqrt(norms) * np.sqrt(length))
            rough[~(_is_kept(norms) & _is_kept(length))] = -np.inf
        else:
            rough = norms - 2 * dots + length
    rough[~np.isfinite(rough)] = -np.inf
    rough[np.isnan(norms)] = np.nan
    return np.asarray(rough)


def _is_kept(squares: Any) -> Any:
    """Where squared lengths neither overflowed nor lost digits."""
    return np.isfinite(squares) & (squares >= _SMALL)


def slack(block: VectorBlock, query: Matrix, metric: str) -> float:
    """The maximum error of a rough distance."""
    relative = _SLACK[query.dtype] * math.sqrt(len(query))
    if metric == "cosine":
        return relative
    norms = block.norms[np.isfinite(block.norms)]
    largest = float(norms.max(initial=0.0)) + float(np.einsum("i,i", query, query))
    return relative * (largest + 1.0)


def exact_distances(values: npt.NDArray[Any], query: Matrix, metric: str) -> Floats:
    """Distances of a few vectors, summed in double precision."""
    if not len(values):
        return np.zeros(0)  # of a level without rows not even the width is known
    rows, wanted = values.astype(np.float64), query.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if metric == "dot":
            distances: Floats = 1 - rows @ wanted
        elif metric == "cosine":
            lengths = np.sqrt((rows * rows).sum(axis=1)) * np.sqrt(wanted @ wanted)
            distances = 1 - (rows @ wanted) / lengths
        else:
            distances = ((rows - wanted) ** 2).sum(axis=1)
    return distances
