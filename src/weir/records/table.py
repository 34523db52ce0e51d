"""The table's record: what `weir.open` reads first. A chain of JSON records under `_weir/table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

import pyarrow as pa
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from weir.config import WriterConfig
from weir.env import Env
from weir.errors import NotAWeirTable
from weir.format import paths
from weir.format.sharding import (
    FIRST_ROUTING,
    Sharding,
    Value,
    makes_shards,
    shard_id,
    value_from_entries,
)
from weir.lazy import Lazy
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store
from weir.store.open import require_recorded

# Stored. Never change a value; add one.
FORMAT: Final = 2
"""What a later release would raise so that this one refuses to open the table. 1 was never
released: its shard ids were weir's own, not LanceDB's."""


State = Literal["making", "dropping", "dropped"]


Spec = Annotated[int, Meta(ge=0, lt=1 << 32)]
"""Lance stores it in 32 bits."""


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    """One shard of the routing, and the value whose rows it takes."""

    shard: UUID
    value: Value
    spec: Spec


class TableRecord(Record, frozen=True, dict=True, tag_field="format", tag=FORMAT):
    """One version of the record. Shards that are made as rows come are not listed: their values
    give their ids."""

    KIND: ClassVar[str] = "table record"
    table_id: UUID
    primary_key: tuple[str, ...]
    sharding: Sharding
    routing: tuple[Route, ...]
    routing_version: int
    spec: Spec
    wal_uri: str | None
    """The second store for logs; None: they are beside the data."""
    settings: Mapping[str, object] = field(name="writer_defaults")
    probe: Mapping[str, object]
    created: float
    former: tuple[tuple[int, Sharding], ...] = ()
    """Routings before this one: their shards know which batches they took in (P-6)."""
    maintain_all: bool = True
    """Native writers maintain every index; False: only those that the MemWAL index entry named when
    the table was adopted."""
    wal_folder: str | None = None
    """The folder in that store where logs begin from now on; those of each shard say where they
    are (`records/places.py`)."""
    finished: tuple[UUID, ...] = ()
    """Sealed shards that no row goes to, with nothing in their logs and SSTables that is not in the
    base, and with no token: no read needs them, for good (C-17)."""
    state: State | None = None
    """None: the table is there. One in the making is found by its maker alone, and dropped by
    whoever makes a table there; a drop says how far it has come (C-16)."""

    def __post_init__(self) -> None:
        """Refuse a place or settings that cannot be."""
        require_recorded(self.wal_uri)
        if (self.wal_uri is None) != (self.wal_folder is None):
            raise ValueError("wal_uri and wal_folder must both be strings or both be missing")
        if self.wal_folder is not None and not paths.is_log_folder(self.wal_folder):
            raise ValueError(f"{self.wal_folder!r} is not the name of a log's folder")
        _ = self.writer_defaults

    @Lazy  # every read asks for one of them
    def writer_defaults(self) -> WriterConfig:
        """The settings of a writer that was given none."""
        return WriterConfig.from_record(self.settings)

    @property
    def is_native(self) -> bool:
        """True while rows go to the shards that LanceDB would send them to (X-1)."""
        return self.routing_version == FIRST_ROUTING

    def shard_of(self, value: Value, dtype: pa.DataType | None) -> UUID:
        """The shard that takes the rows of `value`; `dtype` is that of an identity column."""
        return shard_id(self.sharding, value, self.routing_version, dtype)

    def routes_to(
        self, shard: UUID, entries: Sequence[tuple[str, bytes]], dtype: pa.DataType | None
    ) -> bool:
        """True when rows go to that shard; `entries` are the field entries of its manifest.

        `dtype` is that of an identity column.
        """
        if not makes_shards(self.sharding):
            return any(route.shard == shard for route in self.routing)
        value = value_from_entries(self.sharding, tuple(entries), dtype)
        return self.shard_of(value, dtype) == shard


class TableRecords:
    """Reads and replaces the record of one table."""

    def __init__(self, store: Store, of: UUID | None = None) -> None:
        """`load` and `update` refuse the record of another table than `of`, made where that one
        was dropped (C-16)."""
        self._store = store
        self._of = of
        self._chain = RecordChain(store, paths.table_chain(), TableRecord)

    def find(self) -> TableRecord | None:
        """The latest record; None if there is none, or it says that the table was dropped. One
        list, one get."""
        found = self._chain.latest()
        return None if found is None or found.state == "dropped" else found

    def is_there(self) -> bool:
        """True when the table is, or its drop is under way; not another one at its place."""
        found = self.find()
        return found is not None and self._of in (None, found.table_id)

    def holds_graves(self) -> bool:
        """True when a table was ever dropped here (C-16). A list, a get for each record."""
        return any(found.state == "dropped" for found in self._chain.all())

    def longest_fence_ttl(self, known: TableRecord) -> float:
        """The largest `fence_ttl` of the table of that record, and of those dropped here before
        (C-16): a writer of any of them may still rely on a proof of that age. A list, a get for
        each record."""
        return max(found.writer_defaults.fence_ttl_s for found in (known, *self._chain.all()))

    def last_number(self, known: int | None = None) -> int:
        """The number of the latest record; one list, or one head when it still is `known`."""
        return self._chain.last_number(known)

    def at_routing(self, routing_version: int) -> TableRecord | None:
        """The latest record of that routing that is still there. A list, a get for each record."""
        for found in reversed(self._chain.all()):
            if found.state == "dropped":
                return None  # what follows is of another table, which was dropped here
            if found.routing_version == routing_version:
                return found
        return None

    def load(self, *, to_drop: bool = False, maker: UUID | None = None) -> TableRecord:
        """The latest record, or `NotAWeirTable`; that of a table in the making only for the `maker`
        of that id, or `to_drop` it, as one whose drop was begun."""
        found = self._require(self._chain.latest())
        if to_drop:
            return found
        is_ours = found.table_id in (maker, self._of)
        if found.state == "making" and not is_ours:  # guard: P-9 test_making_deaths
            raise NotAWeirTable(
                f"{self._store.uri} holds no weir table yet: a statement is making one, or died."
                " Making it again, or weir.drop, removes what is left"
            )
        if found.state == "dropping":
            raise NotAWeirTable(
                f"{self._store.uri} is being dropped; to finish an interrupted drop, run weir.drop"
            )
        return found

    def _require(self, found: TableRecord | None) -> TableRecord:
        if found is None or found.state == "dropped":
            raise NotAWeirTable(
                f"{self._store.uri} holds no weir table: `create` makes one, `enable` adopts"
                " a Lance dataset"
            )
        if self._of not in (None, found.table_id):  # guard: C-16 test_drop
            raise replaced(self._store.uri)
        return found

    def create(self, record: TableRecord) -> int:
        """Write the first record and return its number.

        `CommitConflict` when somebody else was faster. Numbers go on where those of a dropped table
        ended, so that an old handle sees the change (C-16).
        """
        found = self._chain.latest()
        after = found.seq if found is not None and found.state == "dropped" else 0
        busy = "another process created the table first; open it"
        return self._chain.follow(replace(record, seq=after), busy).seq

    def update(self, change: Callable[[TableRecord], TableRecord], env: Env) -> TableRecord:
        """Replace the record by `change(latest)`, starting over when somebody else was faster."""
        busy = "others changed the table record at every attempt; try again"
        changed = self._chain.update(lambda found: change(self._require(found)), env, busy)
        assert changed is not None, "a table that has a record keeps one"
        return changed


def replaced(uri: str) -> NotAWeirTable:
    """The error for a handle of a table that was dropped, where another one is now (C-16)."""
    return NotAWeirTable(
        f"{uri}: the table of this handle was dropped, and another one was made there; open it"
        " again with weir.open"
    )


def with_routing(
    record: TableRecord, sharding: Sharding, routing: tuple[Route, ...]
) -> TableRecord:
    """The record after resharding: new routes, the next routing version."""
    return replace(
        record,
        sharding=sharding,
        routing=routing,
        routing_version=record.routing_version + 1,
        former=(*record.former, (record.routing_version, record.sharding)),
    )
