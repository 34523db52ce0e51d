"""What every part of an open table shares: its stores, its Lance side, its record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa
from msgspec import structs

from weir.env import SYSTEM, Env, Lock
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    NotAWeirTable,
    SealedShard,
    SnapshotExpired,
)
from weir.format import paths
from weir.format.manifest import UNCLAIMED, ShardManifest, Status
from weir.format.schema import TableSchema
from weir.format.sharding import (
    Identity,
    PerWriter,
    Router,
    Sharding,
    Unsharded,
    Value,
    field_entries,
    makes_shards,
    shard_id,
    value_from_entries,
)
from weir.lake.api import Base, Lake, require_weir_base
from weir.log.floors import FloorValues
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.wal_store import WalStores
from weir.records.places import LogPlace
from weir.records.resharding import replacing
from weir.records.table import Route, TableRecord, TableRecords, replaced
from weir.routing.attached import Attached
from weir.routing.first_row import first_row
from weir.shard.writer import ShardWriter
from weir.store.api import Store, is_local
from weir.store.consent import Consent
from weir.store.open import open_store
from weir.types import Generation, Position, Version

_ROUTES_LIMIT: Final = 4096
"""Shards whose ids are remembered; an identity column may have many values."""


CONCURRENCY: Final = 16
"""Shards that one call reads or writes at once."""


class HasCore(Protocol):
    """`weir.Table`, for the layers below it."""

    core: Core


@dataclass
class Core:
    """One open table. Safe to share between threads."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    store: Store
    wal: Store
    lake: Lake
    env: Env
    record: TableRecord
    known_number: int = 0
    """The number of the table's latest record that this handle has seen; 0 before that."""
    wal_uri: str | None = None
    """Where this handle puts the log; None: where it is, or where the record puts new shards."""
    registered_writers: dict[UUID, ShardWriter] = field(default_factory=dict, repr=False)
    """The latest writer this handle opened of each shard; a checkpoint flushes through them."""
    _opening: dict[UUID, Lock] = field(default_factory=dict, init=False, repr=False)
    before_writing: Callable[[Core], TableSchema] | None = field(default=None, repr=False)
    """Checks that the first writer makes because of other programs (X-1, X-3, L-8); returns the
    schema it writes with. The table sets it, upkeep does not."""
    _values: dict[UUID, tuple[Value]] = field(default_factory=dict, init=False, repr=False)
    """The values of identity shards whose manifests do not name one."""
    is_replaced: bool = field(default=False, init=False, repr=False)
    """True once another table was found at this place; every later call is refused (C-16)."""
    _logs: dict[UUID, ShardLog] = field(default_factory=dict, init=False, repr=False)
    """What this handle knows of its shards' manifests and logs: a later look begins there."""
    attached: Attached = field(init=False, repr=False)
    wal_stores: WalStores = field(init=False, repr=False)
    consent: Consent = field(init=False, repr=False)
    """Where the table's records may lead (G-13)."""

    def __post_init__(self) -> None:
        self.consent = Consent.of(self.uri, self.storage_options)
        self.attached = Attached(self.env)

        def open_wal(uri: str) -> Store:
            if uri == self.wal.uri:
                return self.wal
            return open_store(uri, self.storage_options, env=self.env)

        def open_folder(uri: str) -> Store:
            return open_store(uri, self.storage_options, env=self.env, must_exist=True)

        self.wal_stores = WalStores(
            lambda: self.store,
            self.env,
            open_wal,
            open_folder,
            lambda: self.record.writer_defaults.fence_ttl_s,
            self.consent,
        )
        self.wal_stores.table_id = self.record.table_id
        self.wal_stores.alias = None if self.wal_uri == self.uri else self.wal_uri

    _known_schema: TableSchema | None = field(default=None, repr=False)
    _routes: tuple[TableRecord | None, dict[tuple[type, Value], UUID]] = field(
        default=(None, {}), repr=False
    )
    _routed: tuple[int, set[UUID]] = field(default=(-1, set()), repr=False)
    """The number of a routing, and its shards; of an identity sharding, those found so far."""
    _listed: tuple[Sequence[str], TableRecord | None, list[UUID]] = field(
        default=([], None, []), repr=False
    )
    """The folders of the last listing of shards, the record then, and the shards in order."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the place only and open it there again, without caches, writers or locks.

        Credentials travel only if they were given as `storage_options`.
        """
        if self.env is not SYSTEM:
            raise TypeError(f"{self.uri}: a table opened with a custom `env` cannot be pickled")
        table = self.record.table_id
        return _opened_again, (self.uri, dict(self.storage_options), self.wal_uri, table)

    @property
    def workers(self) -> int:
        """Requests worth making at once: a file is read sooner than another thread takes over."""
        return 1 if is_local(self.store) and is_local(self.wal) else CONCURRENCY

    def base(self, version: int | None = None) -> Base:
        """The latest version of the base (one listing), or that one.

        Raises `CorruptEntry` when another program left a base that is not this table's (L-8).
        """
        for _ in self.env.attempts(first_delay=0):
            base = self.lake.open_base(version)
            try:
                # guard: L-8 test_overwritten_base
                require_weir_base(base, self.record.primary_key, self.uri)
            except SnapshotExpired:
                if version is not None:
                    raise
                continue  # cleaned up between the listing and the read: there is a newer one
            return base
        raise SnapshotExpired(
            f"{self.uri}: versions of the base were cleaned up, each before it could be"
            " read; try again"
        )

    def schema(self) -> TableSchema:
        """The schema of the latest base version. One listing."""
        return self.base().schema

    def known_schema(self) -> TableSchema:
        """The schema of some recent base version; the key columns are the same in all of them.

        No request once the base was opened.
        """
        if self._known_schema is None:
            self._known_schema = self.schema()
        return self._known_schema

    def site(self, manifest: ShardManifest, floors: FloorValues) -> ShardSite:
        """Where that shard and its log are; `floors` were read after the manifest.

        No request for a place seen before. Raises `WalStoreMismatch` when the folder of the log is
        not there, or names another table (S-1, S-5, S-8).
        """
        return self.log(manifest.shard_id).site(manifest, floors)

    def log(self, shard: UUID) -> ShardLog:
        """The shard's manifest and log, across its moves (S-9). No request."""
        known = self._logs.get(shard)
        if known is None:
            log = ShardLog(self.table_site(shard), self.wal_stores)
            known = self._logs.setdefault(shard, log)  # one step: no two are remembered
        return known

    def table_site(self, shard: UUID) -> ShardSite:
        """The shard for callers that never read its log: manifests, floors, SSTables (S-5)."""
        return self.wal_stores.table_site(shard)

    def wanted_wal(self, recorded: LogPlace) -> str | None:
        """Where a writer of this handle puts the log: as requested, as recorded, or by default."""
        if self.wal_uri == self.uri:
            return None
        if not recorded.seq:
            recorded = LogPlace(uri=self.record.wal_uri, folder=self.record.wal_folder)
        if self.wal_uri is not None and not self.wal_stores.is_under_alias(recorded):
            return self.wal_uri
        return recorded.uri

    def record_wal_move(self, site: ShardSite) -> None:
        """S-8: note a move of the log in the table's record: it is the table's, not one shard's.

        Called with the shard open for writing at `site`. No request unless the record says
        otherwise. A move to a WAL store is noted before it begins (`WalStores.place_for`).
        """
        if self.wal_uri is None:
            return
        if self.wal_uri == self.uri and not site.is_apart and self.record.wal_uri is not None:
            self.place_logs(self.records().update(beside_the_data, self.env))
        elif site.is_apart and self.record.wal_uri != self.wal_uri:
            self.place_logs(self.records().load())

    def records(self) -> TableRecords:
        """The records of this table, and of no other one at its place (C-16). No request."""
        return TableRecords(self.store, self.record.table_id)

    def place_logs(self, latest: TableRecord) -> None:
        """Take over where a newer record puts the table's logs."""
        self.record = structs.replace(
            self.record, wal_uri=latest.wal_uri, wal_folder=latest.wal_folder
        )

    def register(self, shard: UUID, writer: ShardWriter) -> None:
        """Remember the latest writer of that shard; forget those that are closed and left no rows:
        each would hold memory as long as the handle (M-6)."""
        # guard: M-6 test_waiters
        for other, known in list(self.registered_writers.items()):
            if known.has_ended and not known.has_rows_left:
                self.registered_writers.pop(other, None)
        self.registered_writers[shard] = writer

    def unregister(self, shard: UUID, writer: ShardWriter) -> None:
        """Forget that writer, unless the handle has opened another of the shard since."""
        if self.registered_writers.get(shard) is writer:  # guard: M-6 test_waiters
            self.registered_writers.pop(shard, None)

    def live_writer(self, shard: UUID) -> ShardWriter | None:
        """The writer of that shard in this handle, until it has ended."""
        writer = self.registered_writers.get(shard)
        return None if writer is None or writer.has_ended else writer

    def opening(self, shard: UUID) -> Lock:
        """Held from the claim of a shard by this handle until its writer is registered, or upkeep
        has given it back: two claims by one process would fence each other (H-1, K-3)."""
        return self._opening.setdefault(shard, self.env.threads.lock())  # one step: no two locks

    def refresh(self) -> TableRecord:
        """Read the record again, after resharding for example. One list, one get.

        `NotAWeirTable` when the table was dropped, also if another one was made there since.
        """
        record = self._load_record()
        self.record, self.known_number = record, record.seq
        return record

    def record_number(self) -> int:
        """The number of the table's latest record. One head when nothing changed (C-16).

        `NotAWeirTable` as in `refresh`; the handle keeps the routing that it knows.
        """
        records = TableRecords(self.store)
        number = records.last_number(self.known_number or None)
        if number != self.known_number:
            latest = self._load_record()
            self.known_number = number
            if latest.finished != self.record.finished:
                self.record = structs.replace(self.record, finished=latest.finished)
        return number

    def latest_record(self) -> TableRecord:
        """The table's record as of the last look at its number; this handle keeps what it knows of
        the routing. One list and one get if it has changed, otherwise no request."""
        return self.record if self.known_number == self.record.seq else self.records().load()

    def require_not_replaced(self) -> None:
        """Raise if this handle has met another table at its place (C-16). No request."""
        if self.is_replaced:
            self._require_same(self.record)

    def _load_record(self) -> TableRecord:
        found = TableRecords(self.store).load(maker=self.record.table_id)
        self._require_same(found)
        return found

    def _require_same(self, record: TableRecord) -> None:
        if self.is_replaced or record.table_id != self.record.table_id:
            self.is_replaced = True
            raise replaced(self.uri)

    @property
    def router(self) -> Router:
        """Routes rows to shards, by the record."""
        return Router(self.record.sharding)

    def shard_ids(self) -> list[UUID]:
        """Every shard that may hold rows, of any origin, in the order of the routing. One listing.

        Lists the store, not the record: native writers and other processes add shards. Leaves out
        those that are finished (C-17).
        """
        found, finished = self.all_shard_ids(), frozenset(self.record.finished)
        return [shard for shard in found if shard not in finished] if finished else found

    def all_shard_ids(self) -> list[UUID]:
        """`shard_ids` with the finished ones: feeds may have read less than their logs held, and a
        drop must leave none behind. One listing."""
        self.require_not_replaced()
        folders, _ = self.store.list_folder(paths.SHARDS)
        listed, record, ids = self._listed
        if record is not self.record or listed != folders:
            record = self.record
            ids = self._ids_of(folders, record)
            self._listed = (folders, record, ids)
        return list(ids)

    def _ids_of(self, folders: Sequence[str], record: TableRecord) -> list[UUID]:
        found = set()
        for name in folders:
            try:
                found.add(paths.parse_shard_id(name.rstrip("/").rpartition("/")[2]))
            except InvalidInput:
                continue
        routed = [route.shard for route in record.routing]
        return [*routed, *sorted(found.difference(routed))]

    def route(self, value: Value) -> UUID:
        """The shard that takes the rows of `value`."""
        return self.shard_of(value, self.record)

    def shard_of(self, value: Value, record: TableRecord) -> UUID:
        """The shard that takes the rows of `value` by that record."""
        # A record never changes, and each has a cache of its own. An id takes 20 us to compute.
        of, known = self._routes
        if of is not record:
            _, known = self._routes = record, {}
        key = (type(value), value)
        found = known.get(key)
        if found is None:
            if len(known) >= _ROUTES_LIMIT:
                known.clear()
            found = known[key] = record.shard_of(value, self.identity_type(record.sharding, value))
        return found

    def ensure_shard(self, value: Value, record: TableRecord | None = None) -> UUID:
        """The shard of `value`, made if it does not exist. Concurrent creators agree.

        Raises `SealedShard` when the routing was or is being changed: nothing new is written under
        the old one. Where shards are made as rows come, one list.
        """
        record = record or self.record
        shard = self.shard_of(value, record)
        manifests = self.log(shard).manifests
        if makes_shards(record.sharding):
            known = manifests.latest()
            if known is None or known.dropped:
                self._require_routing(record)
                # S-8: its log goes where the table's is by now.
                latest = self._load_record()
                self.place_logs(latest)  # guard: S-8
                entries = field_entries(record.sharding, value, self._latest_type(record.sharding))
                manifests.create(first_manifest(shard, record.spec, entries))
                # C-16: a drop writes its record before it lists the shards to seal.
                self.record_number()
            elif (
                isinstance(record.sharding, Identity)
                and value is not None
                and not known.field_entries
            ):
                self._name_shard(manifests, known, record.sharding, value)
            # C-11: checked after the shard exists. A reshard writes its record before it lists the
            # shards to seal: either it finds this shard, or we find its record here.
            self._require_routing(record)  # guard: C-11 test_shard_made_after_a_reshard
        return shard

    def _latest_type(self, sharding: Sharding) -> pa.DataType | None:
        """The type of the identity column in the latest base. One listing, if there is one."""
        if not isinstance(sharding, Identity):
            return None
        return self.schema().plain.field(sharding.column).type

    def _name_shard(
        self, manifests: Manifests, known: ShardManifest, sharding: Identity, value: Value
    ) -> None:
        """X-2: name the value of a shard that LanceDB made, in the epoch of its current owner."""
        dtype = self.known_schema().plain.field(sharding.column).type
        entries = field_entries(sharding, value, dtype)
        # If the shard is busy, a later call names it; its id shows the value too.
        with contextlib.suppress(FencedError, CommitConflict):
            manifests.update(
                lambda latest: (replace(latest, field_entries=entries), Evidence()),
                epoch=known.writer_epoch,
            )

    def _require_routing(self, record: TableRecord) -> None:
        change = replacing(self.store, record.routing_version)
        if change is not None:
            raise SealedShard(
                f"{self.uri} was or is being resharded to {change.sharding}; open the table again"
                " when the reshard is done"
            )

    def value_of(self, shard: UUID, manifest: ShardManifest | None) -> Value:
        """The value whose rows the shard takes; None for a shard outside the routing."""
        for route in self.record.routing:
            if route.shard == shard:
                return route.value
        sharding = self.record.sharding
        if manifest is None or not isinstance(sharding, Identity | PerWriter):
            return None
        value = value_from_entries(sharding, manifest.field_entries, self.identity_type(sharding))
        if isinstance(sharding, PerWriter):
            is_own = value is not None and self.shard_of(value, self.record) == shard
            return value if is_own else None
        if not manifest.field_entries and self.route(None) != shard:
            claimed = self.unnamed_value(shard, manifest, sharding)
            value = None if claimed is None else claimed[0]
        return value if self.route(value) == shard else None

    def unnamed_value(
        self, shard: UUID, manifest: ShardManifest, sharding: Identity
    ) -> tuple[Value] | None:
        """X-2: LanceDB names no value; the first row shows it, and it never changes. Read once."""
        known = self._values.get(shard)
        if known is None:
            row = first_row(
                self.lake, self.log(shard), manifest, self.known_schema(), sharding.column
            )
            if row is None:
                return None
            known = self._values[shard] = (row.column(0)[0].as_py(),)
        return known

    def is_routed(self, shard: UUID, manifest: ShardManifest | None) -> bool:
        """True when the routing sends rows to that shard."""
        return self.route(self.value_of(shard, manifest)) == shard

    def routed(self, shards: Sequence[UUID]) -> AbstractSet[UUID]:
        """Those of the shards that hold rows of their own values only, by the routing.

        No request, except with identity sharding: two for each shard, once.
        """
        record = self.record
        version, known = self._routed
        if version != record.routing_version:
            known = {route.shard for route in record.routing}
            self._routed = record.routing_version, known
        if not isinstance(record.sharding, Identity):
            return known
        unknown = [shard for shard in shards if shard not in known]

        def look(shard: UUID) -> bool:
            manifest = self.log(shard).latest()
            return manifest is not None and self.is_routed(shard, manifest)

        found = self.env.threads.map(look, unknown, workers=self.workers)
        # A shard is known for good: its value never changes once it has one.
        known.update(shard for shard, is_routed in zip(unknown, found, strict=True) if is_routed)
        return known

    def identity_type(self, sharding: Sharding, value: Value = 0) -> pa.DataType | None:
        """The type of the identity column, where the value alone does not determine its bytes."""
        if not isinstance(sharding, Identity) or not isinstance(value, int):
            return None
        columns = self.known_schema().plain
        if sharding.column in columns.names:
            return columns.field(sharding.column).type
        return self._recorded_type()

    def _recorded_type(self) -> pa.DataType | None:
        """The type of an identity column that another program renamed or dropped (L-8).

        The MemWAL index entry still says it: without it no shard's value could be read, and the
        table could not be resharded by another column.
        """
        details = self.lake.open_base().mem_wal
        specs = () if details is None else details.sharding_specs
        for field_ in (field_ for spec in specs for field_ in spec.fields):
            if field_.transform == "identity":
                known = _ARROW_TYPES.get(field_.result_type)
                return known or pa.type_for_alias(field_.result_type)
        return None


_ARROW_TYPES: Final = {
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "boolean": pa.bool_(),
}
"""Types whose Lance names are not Arrow's."""


def first_manifest(shard: UUID, spec: int, entries: tuple[tuple[str, bytes], ...]) -> ShardManifest:
    """The manifest of a shard nobody has claimed yet; its first writer gets epoch 1."""
    return ShardManifest(
        version=Version(1),
        writer_epoch=UNCLAIMED,
        replay_after=Position(0),
        last_seen=Position(0),
        current_generation=Generation(1),
        sstables=(),
        shard_spec_id=spec,
        shard_id=shard,
        field_entries=entries,
        status=Status.ACTIVE,
    )


def routes_of(
    sharding: Sharding, values: list[Value], routing_version: int, spec: int
) -> tuple[Route, ...]:
    """The routing of `values`; empty where shards are made as rows come."""
    if not isinstance(sharding, Unsharded) and not values:
        return ()
    return tuple(Route(shard_id(sharding, v, routing_version), v, spec) for v in values)


def _opened_again(
    uri: str, storage_options: Mapping[str, str], wal_uri: str | None, table: UUID
) -> Core:
    from weir.routing.opening import open as open_core  # which imports this module

    opened = open_core(uri, storage_options=storage_options, wal_uri=wal_uri)
    if opened.record.table_id != table:
        raise NotAWeirTable(
            f"{uri}: the table was dropped, and another one was made there; plan the work again"
        )
    return opened


def beside_the_data(record: TableRecord) -> TableRecord:
    """The record of a table that keeps its logs beside the data."""
    return structs.replace(record, wal_uri=None, wal_folder=None)
