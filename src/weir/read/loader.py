"""Rows for training: batches of one size, in an order set by a seed, split between workers.

Keeps
  L-5  all passes and all workers read one snapshot: rows put later are in none of them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from weir.env import seeded
from weir.errors import InvalidInput
from weir.lake.api import Base
from weir.merge.merge import unless_collected
from weir.merge.projection import Projection
from weir.read.parts import Part, base_parts, fresh_parts, read_part
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot
from weir.routing.core import Core
from weir.types import Filter, require_whole

if TYPE_CHECKING:
    from weir.env import Shuffler

BUFFER_ROWS: Final = 65_536
"""Default size of the shuffle buffer, in rows."""

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Arrays: TypeAlias = dict[str, Array]
"""A batch as numpy arrays, one for each column; a vector column has two dimensions."""


@dataclass(frozen=True)
class Loader:
    """Batches of rows for a training loop; made by `Scan.loader`. Each iteration is one pass.

    It reads one snapshot, whatever is put later, and is pickled as the table's location and that
    snapshot: workers in other processes read the same snapshot, and no row twice.
    """

    core: Core
    snapshot: Snapshot
    columns: Projection
    filter: Filter | None
    batch_size: int
    seed: int | None = None
    buffer_rows: int = BUFFER_ROWS
    drop_last: bool = False
    epoch: int = 0
    worker: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value, least in (
            ("batch_size", self.batch_size, 1),
            ("buffer_rows", self.buffer_rows, 1),
            ("epoch", self.epoch, 0),
            ("seed", 0 if self.seed is None else self.seed, 0),
        ):
            require_whole(name, value, least)
        match self.worker:
            case (int(index), int(count)) if 0 <= index < count:
                return
        raise InvalidInput(
            f"worker must be (index, count) with 0 <= index < count, got {self.worker!r}"
        )

    def __repr__(self) -> str:
        return (
            f"Loader({self.core.uri}, batch_size={self.batch_size}, seed={self.seed},"
            f" epoch={self.epoch}, worker={self.worker})"
        )

    def at_epoch(self, epoch: int) -> Loader:
        """The same rows, shuffled for another pass: seed and epoch determine the order."""
        return replace(self, epoch=epoch)

    def part(self, index: int, count: int) -> Loader:
        """The share of worker `index` of `count`: shares are disjoint and together hold all rows.

        Fragments of the base and shards are assigned whole, balanced by their number of rows.
        """
        return replace(self, worker=(index, count))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """One pass. Raises `SnapshotExpired` if rows were collected since (`gc`'s `min_age`); for a
        scan at a checkpoint, the checkpoint keeps them."""
        chance = None if self.seed is None else seeded(self.seed, self.epoch, self.worker[0])
        kept = 0 if chance is None else self.buffer_rows // 2
        enough = max(0 if chance is None else self.buffer_rows, kept + self.batch_size)
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in unless_collected(self._rows(chance), self.core.uri):
            held.append(batch)
            count += batch.num_rows
            if count < enough:
                continue
            rows = _mixed(held, chance)
            # The rows kept back are shuffled with the rows read next.
            out = (count - kept) // self.batch_size * self.batch_size
            yield from _cut(rows.slice(0, out), self.batch_size)
            held, count = [rows.slice(out)], count - out
        if count:
            out = count // self.batch_size * self.batch_size if self.drop_last else count
            yield from _cut(_mixed(held, chance).slice(0, out), self.batch_size)

    def numpy(self) -> Iterator[Arrays]:
        """One pass, each batch as new arrays. Raises `InvalidInput` for nulls, which numpy cannot
        represent except in columns of objects (text, bytes, lists)."""
        for batch in self:
            yield {name: _array(name, batch.column(name)) for name in batch.schema.names}

    def _rows(self, chance: Shuffler | None) -> Iterator[pa.RecordBatch]:
        """The rows of this worker in the order they are read."""
        reader = SnapshotReader(self.core, self.snapshot)
        mine = _dealt(_parts(self.snapshot, reader.base), *self.worker)
        if chance is not None:
            mine = [mine[place] for place in chance.permutation(len(mine))]
        fragments = [part for part in mine if part.fragments]
        # One merge reads all fragments, so the keys of fresh rows are collected once.
        base = [Part(tuple(f for part in fragments for f in part.fragments))] if fragments else []
        fresh = [part for part in mine if part.shards]
        sides = [
            (self._read(reader, parts), sum(part.rows for part in rows))
            for parts, rows in ((base, fragments), (fresh, fresh))
            if parts
        ]
        yield from _interleaved(sides, chance)

    def _read(self, reader: SnapshotReader, parts: list[Part]) -> Iterator[pa.RecordBatch]:
        read = self.columns.read(reader.schema)
        for part in parts:
            rows = read_part(reader, part, columns=read, filter=self.filter)
            yield from self.columns.apply(rows, None)


def _parts(snapshot: Snapshot, base: Base) -> list[Part]:
    """All parts of the snapshot, the same in every process."""
    sizes = {
        cut.shard: cut.wal_through
        - cut.replay_after
        + sum(table.physical_rows or 1 for table in cut.sstables)
        for cut in snapshot.cuts
    }
    fresh = [
        replace(part, rows=sum(sizes[shard] for shard in part.shards))
        for part in fresh_parts(snapshot, base)
    ]
    return [*base_parts(base, split_rows=1), *fresh]


def _dealt(parts: list[Part], index: int, count: int) -> list[Part]:
    """The share of one worker: parts, largest first, each go to the worker with fewest rows."""
    loads = [0] * count
    mine = []
    for place in sorted(range(len(parts)), key=lambda n: -parts[n].rows):
        least = loads.index(min(loads))
        loads[least] += parts[place].rows
        if least == index:
            mine.append(place)
    return [parts[place] for place in sorted(mine)]


def _interleaved(
    sides: list[tuple[Iterator[pa.RecordBatch], int]], chance: Shuffler | None
) -> Iterator[pa.RecordBatch]:
    """The sides in sequence; with `chance`, interleaved at random in proportion to the rows left,
    which spreads fresh rows over the whole pass."""
    if chance is None:
        for batches, _ in sides:
            yield from batches
        return
    left = [max(rows, 1) for _, rows in sides]
    while sides:
        place = int(chance.choice(len(sides), p=np.array(left) / sum(left)))
        batch = next(sides[place][0], None)
        if batch is None:
            del sides[place], left[place]
            continue
        left[place] = max(1, left[place] - batch.num_rows)
        yield batch


def _mixed(batches: list[pa.RecordBatch], chance: Shuffler | None) -> pa.RecordBatch:
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return rows if chance is None else rows.take(pa.array(chance.permutation(rows.num_rows)))


def _cut(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _array(name: str, column: pa.Array) -> Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    shape = [len(column)]
    while pa.types.is_fixed_size_list(column.type):
        _refuse_nulls(name, column)
        shape.append(column.type.list_size)
        column = column.flatten()
    if _is_number(column.type):
        _refuse_nulls(name, column)
    found: Array = column.to_numpy(zero_copy_only=False).reshape(shape)
    return found if found.flags.writeable else found.copy()


def _is_number(dtype: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(dtype) or kinds.is_floating(dtype) or kinds.is_boolean(dtype))


def _refuse_nulls(name: str, column: pa.Array) -> None:
    if column.null_count:
        raise InvalidInput(
            f"column {name!r} has nulls, which an array of {column.type} cannot hold; exclude those"
            f' rows with the filter "{name} IS NOT NULL", or replace the nulls with the expression'
            f' "coalesce({name}, ...)"'
        )
