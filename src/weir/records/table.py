"""The table's record: what `weir.open` reads first. A chain of JSON records under `_weir/table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.errors import CommitConflict, CorruptEntry, NotAWeirTable
from weir.format import paths
from weir.format.sharding import (
    FIRST_ROUTING,
    Identity,
    Sharding,
    Value,
    from_record,
    shard_id,
    to_record,
    value_from_entries,
)
from weir.records.chain import RecordChain, RecordCodec
from weir.store.api import ObjectExists, Store
from weir.store.open import recorded

# Stored. Never change a value; add one.
FORMAT: Final = 2
"""2: the first routing has LanceDB's shard ids. A release that knows only 1 would compute others
and lose updates, so it refuses to open the table."""
FORMATS: Final = (1, 2)

_CAS_ATTEMPTS: Final = 16


@dataclass(frozen=True)
class Route:
    """One shard of the routing, and the value whose rows it takes."""

    shard: UUID
    value: Value
    spec: int


@dataclass(frozen=True)
class TableRecord:
    """One version of the record. Identity shards are not listed: their values give their ids."""

    table_id: UUID
    primary_key: tuple[str, ...]
    sharding: Sharding
    routing: tuple[Route, ...]
    routing_version: int
    spec: int
    wal_uri: str | None
    writer_defaults: WriterConfig
    probe: Mapping[str, Any]
    created: float
    former: tuple[tuple[int, Sharding], ...] = field(default=(), kw_only=True)
    """Routings before this one: their shards know which batches they took in (P-6)."""
    extra: Mapping[str, Any]
    """Keys added by a later release; this one keeps them when it writes the next record."""
    maintain_all: bool = field(default=True, kw_only=True)
    """Native writers maintain every index; False: only those that the MemWAL index entry named when
    the table was adopted."""
    format: int = field(default=FORMAT, kw_only=True)
    """The format the table was made in, or upgraded to; it determines the shard ids."""
    native_routing: int = field(default=FIRST_ROUTING, kw_only=True)
    """The routing with LanceDB's ids: the first one, or that of the upgrade from format 1."""

    @property
    def first_routing(self) -> int:
        """The number of the routing that the table was made with."""
        return 1 if self.format == 1 or self.native_routing != FIRST_ROUTING else FIRST_ROUTING

    @property
    def is_native(self) -> bool:
        """True while rows go to the shards that LanceDB would send them to (X-1)."""
        return self.routing_version == self.native_routing

    def shard_of(self, value: Value, dtype: pa.DataType | None) -> UUID:
        """The shard that takes the rows of `value`; `dtype` is that of an identity column."""
        return self.shard_at(self.routing_version, self.sharding, value, dtype)

    def shard_at(
        self, routing_version: int, sharding: Sharding, value: Value, dtype: pa.DataType | None
    ) -> UUID:
        """The shard that took the rows of `value` under that routing of this table."""
        ids = FIRST_ROUTING if routing_version == self.native_routing else routing_version
        return shard_id(sharding, value, ids, dtype)

    def routes_to(
        self, shard: UUID, entries: Sequence[tuple[str, bytes]], columns: pa.Schema
    ) -> bool:
        """True when rows go to that shard; `entries` are the field entries of its manifest."""
        if not isinstance(self.sharding, Identity):
            return any(route.shard == shard for route in self.routing)
        dtype = columns.field(self.sharding.column).type
        value = value_from_entries(self.sharding, tuple(entries), dtype)
        return self.shard_of(value, dtype) == shard

    def to_record(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            **self.extra,
            "format": self.format,
            "table_id": str(self.table_id),
            "primary_key": list(self.primary_key),
            "sharding": to_record(self.sharding),
            "routing": [
                {"shard": str(r.shard), "value": r.value, "spec": r.spec} for r in self.routing
            ],
            "routing_version": self.routing_version,
            "spec": self.spec,
            "wal_uri": self.wal_uri,
            "writer_defaults": self.writer_defaults.to_record(),
            "probe": dict(self.probe),
            "created": self.created,
            **({"former": _dump_former(self.former)} if self.former else {}),
            **({} if self.maintain_all else {"maintain_all": False}),
            **(
                {}
                if self.native_routing == FIRST_ROUTING
                else {"native_routing": self.native_routing}
            ),
        }


_KNOWN = frozenset(
    {
        "format",
        "table_id",
        "primary_key",
        "sharding",
        "routing",
        "routing_version",
        "spec",
        "wal_uri",
        "writer_defaults",
        "probe",
        "created",
        "former",
        "maintain_all",
        "native_routing",
    }
)


def _dump_former(former: Sequence[tuple[int, Sharding]]) -> list[Any]:
    return [[version, to_record(sharding)] for version, sharding in former]


def _decode(raw: Mapping[str, Any], path: str) -> TableRecord:
    if raw.get("format") not in FORMATS:
        raise CorruptEntry(
            f"{path} has format {raw.get('format')!r} and this release reads"
            f" {' and '.join(map(str, FORMATS))}; upgrade weir"
        )
    return TableRecord(
        table_id=UUID(raw["table_id"]),
        primary_key=tuple(str(name) for name in raw["primary_key"]),
        sharding=from_record(raw["sharding"], path),
        routing=tuple(Route(UUID(r["shard"]), r["value"], int(r["spec"])) for r in raw["routing"]),
        routing_version=int(raw["routing_version"]),
        spec=int(raw["spec"]),
        wal_uri=None if raw["wal_uri"] is None else recorded(raw["wal_uri"], path),
        writer_defaults=WriterConfig.from_record(raw["writer_defaults"]),
        probe=dict(raw["probe"]),
        created=float(raw["created"]),
        former=tuple((int(n), from_record(how, path)) for n, how in raw.get("former", ())),
        extra={k: v for k, v in raw.items() if k not in _KNOWN},
        maintain_all=raw.get("maintain_all", True) is True,
        format=int(raw["format"]),
        native_routing=int(raw.get("native_routing", FIRST_ROUTING)),
    )


RECORD: Final = RecordCodec("table record", TableRecord.to_record, _decode)


class TableRecords:
    """Reads and replaces the record of one table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chain = RecordChain(store, paths.table_chain(), RECORD)

    def find(self) -> tuple[int, TableRecord] | None:
        """The latest record and its number, or None. One list, one get."""
        found = self._chain.latest()
        return None if found is None else (found.seq, found.value)

    def last_number(self, known: int | None = None) -> int:
        """The number of the latest record; one list, or one head when it still is `known`."""
        return self._chain.last_number(known)

    def at_routing(self, routing_version: int) -> TableRecord | None:
        """The latest record of that routing that is still there. A list, a get for each record."""
        for found in reversed(self._chain.all()):
            if found.value.routing_version == routing_version:
                return found.value
        return None

    def load(self) -> TableRecord:
        """The latest record, or `NotAWeirTable`."""
        found = self.find()
        if found is None:
            raise NotAWeirTable(
                f"{self._store.uri} holds no weir table; weir.create makes one, weir.enable adopts"
                " a Lance dataset"
            )
        return found[1]

    def create(self, record: TableRecord) -> None:
        """Write the first record, or `CommitConflict` when somebody else was faster."""
        try:
            self._chain.append(record, 0)
        except ObjectExists:
            raise CommitConflict(
                f"{self._store.uri}: another process created the table first; open it"
            ) from None

    def update(self, change: Callable[[TableRecord], TableRecord]) -> TableRecord:
        """Replace the record by `change(latest)`, starting over when somebody else was faster."""
        for _ in range(_CAS_ATTEMPTS):
            found = self.find()
            if found is None:
                return self.load()
            seq, current = found
            changed = change(current)
            if changed == current:
                return current
            try:
                self._chain.append(changed, seq)
            except ObjectExists:
                continue
            return changed
        raise CommitConflict(
            f"{self._store.uri}: gave up after {_CAS_ATTEMPTS} lost races for the table record;"
            " try again"
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


def upgraded(record: TableRecord, routing: tuple[Route, ...]) -> TableRecord:
    """The record after an upgrade from format 1: the same sharding, LanceDB's shard ids."""
    following = with_routing(record, record.sharding, routing)
    return replace(
        following,
        format=FORMAT,
        native_routing=following.routing_version,
        spec=1 if record.spec else 0,
    )
