"""Rows of immutable files cached in memory, block by block, for repeated lookups.

Fetching one row costs Lance 0.3 ms on a local disk and several requests on a remote store, even if
it is the same row each time. A block is a run of neighbouring rows, about 64 KiB of them. It is
cached at the second lookup in it: lookups spread over a large table read only the rows they want,
and repeated lookups read nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

import pyarrow as pa

from weir.env import Env
from weir.keys.index import Positions
from weir.lake.cache import ByteCache

ROW_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Limit on the size of all blocks of one table."""
_BLOCK_BYTES: Final = 64 * 1024
_BLOCK_ROWS_MAX: Final = 4096
_FEW: Final = 8
"""Lookups of more rows than this in one file bypass the blocks: one request serves them all."""
_TOUCHES_LIMIT: Final = 65_536
"""Limit on blocks remembered as touched once, and on files whose row size was measured."""

Take = Callable[[list[int]], pa.Table]


class RowBlocks:
    """The blocks of one table's files. Safe to share between threads."""

    def __init__(self, env: Env, limit_bytes: int = ROW_CACHE_BYTES) -> None:
        self._blocks: ByteCache[pa.Table] = ByteCache(limit_bytes, env, "rows")
        self._touched: ByteCache[bool] = ByteCache(_TOUCHES_LIMIT, env)
        self._rows_per_block: ByteCache[int] = ByteCache(_TOUCHES_LIMIT, env)

    @property
    def bytes(self) -> int:
        """Memory held by the rows."""
        return self._blocks.bytes

    def take(self, file: Hashable, rows: int, positions: Positions, read: Take) -> pa.Table:
        """The rows at `positions` of `file`, which is immutable and has `rows` rows.

        `read` fetches rows by position. `file` identifies the columns read as well as the file.
        """
        if len(positions) > _FEW:
            return read(positions.tolist())
        per_block = self._rows_per_block.get(file)
        if per_block is None:
            return self._measured(file, read(positions.tolist()))
        wanted = positions.tolist()
        blocks = [self._block(file, rows, p // per_block, per_block, read) for p in wanted]
        alone = [p for p, block in zip(wanted, blocks, strict=True) if block is None]
        single = read(alone) if alone else None  # one request for all of them
        parts, used = [], 0
        for position, block in zip(wanted, blocks, strict=True):
            if block is not None:
                parts.append(block.slice(position % per_block, 1))
                continue
            assert single is not None, "read above"
            parts.append(single.slice(used, 1))
            used += 1
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def _block(
        self, file: Hashable, rows: int, number: int, per_block: int, read: Take
    ) -> pa.Table | None:
        """The rows of one block; None on the first request for it."""
        key = (file, per_block, number)
        held = self._blocks.get(key)
        if held is not None:
            return held
        if self._touched.get(key) is None:
            self._touched.put(key, True, 1)
            return None
        first = number * per_block
        block = read(list(range(first, min(first + per_block, rows))))
        if block.nbytes > 4 * _BLOCK_BYTES and per_block > 1:
            # Rows here are larger than the first ones seen: smaller blocks from now on.
            self._measured(file, block)
        return self._blocks.put(key, block, block.nbytes)

    def _measured(self, file: Hashable, sample: pa.Table) -> pa.Table:
        row_bytes = max(1, sample.nbytes // max(1, sample.num_rows))
        per_block = min(_BLOCK_ROWS_MAX, max(1, _BLOCK_BYTES // row_bytes))
        self._rows_per_block.put(file, per_block, 1)
        return sample
