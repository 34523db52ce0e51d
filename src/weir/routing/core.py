"""What every part of an open table shares: its stores, its Lance side, its record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from weir.env import SYSTEM, Env
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    SealedShard,
    StoreError,
    WalStoreMismatch,
)
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.format.schema import TableSchema
from weir.format.sharding import (
    Identity,
    Router,
    Sharding,
    Unsharded,
    Value,
    field_entries,
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
from weir.merge.tails import LogCache
from weir.records.resharding import read_resharding
from weir.records.table import Route, TableRecord, TableRecords
from weir.records.wal_store import WalStoreRecord, latest_record
from weir.routing.first_row import first_row
from weir.search.memory import FreshIndexes
from weir.shard.writer import ShardWriter
from weir.store.api import Store, is_local
from weir.store.consent import Consent
from weir.store.open import open_store
from weir.types import Epoch, Generation, Position, Version

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
    tails: LogCache
    wal_uri: str | None = None
    """Where this handle puts the log; None: where it is, or where the record puts new shards."""
    registered_writers: dict[UUID, ShardWriter] = field(default_factory=dict, repr=False)
    """The latest writer this handle opened of each shard; a checkpoint flushes through them."""
    sealed_tokens: dict[tuple[UUID, str], int] = field(default_factory=dict, repr=False)
    """The highest batch number of an application in a shard of a former routing (P-6)."""
    before_writing: Callable[[Core], TableSchema] | None = field(default=None, repr=False)
    """Checks that the first writer makes because of other programs (X-1, X-3, L-8); returns the
    schema it writes with. The table sets it, upkeep does not."""
    _values: dict[UUID, tuple[Value]] = field(default_factory=dict, init=False, repr=False)
    """The values of identity shards whose manifests do not name one."""
    rivals: dict[UUID, Value] = field(default_factory=dict, init=False, repr=False)
    """Shards outside the routing that were found to take rows of it, with the value (X-3)."""
    known_non_rivals: set[UUID] = field(default_factory=set, init=False, repr=False)
    """Shards outside the routing's list that were found to be no rivals, and cannot become one."""
    wal_stores: WalStores = field(init=False, repr=False)
    fresh: FreshIndexes = field(init=False, repr=False)
    """Search indexes over rows in memory."""

    consent: Consent = field(init=False, repr=False)
    """Where the table's records may lead (G-13)."""

    def __post_init__(self) -> None:
        self.consent = Consent.of(self.uri, self.storage_options)
        self.fresh = FreshIndexes(self.env)

        def open_wal(uri: str) -> Store:
            if uri == self.wal.uri:
                return self.wal
            return open_store(uri, self.storage_options, env=self.env)

        self.wal_stores = WalStores(
            lambda: self.store,
            self.env,
            open_wal,
            lambda: self.record.writer_defaults.fence_ttl_s,
            self.consent,
        )
        self.wal_stores.alias = None if self.wal_uri == self.uri else self.wal_uri

    _known_schema: TableSchema | None = field(default=None, repr=False)
    _routes: tuple[TableRecord | None, dict[tuple[type, Value], UUID]] = field(
        default=(None, {}), repr=False
    )
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
        return _opened_again, (self.uri, dict(self.storage_options), self.wal_uri)

    @property
    def workers(self) -> int:
        """Requests worth making at once: a file is read sooner than another thread takes over."""
        return 1 if is_local(self.store) and is_local(self.wal) else CONCURRENCY

    def base(self, version: int | None = None) -> Base:
        """The latest version of the base (one listing), or that one.

        Raises `CorruptEntry` when another program left a base that is not this table's (L-8).
        """
        base = self.lake.open_base(version)
        require_weir_base(base, self.record.primary_key, self.uri)
        return base

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

    def site(self, shard: UUID, floors: FloorValues | None = None) -> ShardSite:
        """Where that shard and its log are; one listing the first time, unless `floors` are given.

        Raises `WalStoreMismatch` when the store of the log is not the one recorded (S-1, S-5).
        """
        return self.wal_stores.site(shard, floors)

    def log(self, shard: UUID) -> ShardLog:
        """The shard's manifest and log, across its moves (S-9). No request."""
        site = self.table_site(shard)
        return ShardLog(site, self.wal_stores, self.tails.manifests(site))

    def log_of(self, manifest: ShardManifest, floors: FloorValues) -> tuple[ShardSite, Position]:
        """Where the log of that shard is, and the last position used in it.

        A missing log is an error (S-7), unless the manifest and floors beside the data
        prove that no row is missing (S-2). Then it ends at R.
        """
        try:
            site = self.site(manifest.shard_id, floors)
            return site, self.tails.tip(site, manifest, floors)
        except (WalStoreMismatch, StoreError):
            if not floors.is_closed(manifest):
                raise
            if latest_record(self.store, manifest.shard_id).uri is None:
                raise  # a log beside the data has no shut mark, so the marks prove nothing
            return self.table_site(manifest.shard_id), manifest.replay_after

    def table_site(self, shard: UUID) -> ShardSite:
        """The shard for callers that never read its log: manifests, floors, SSTables (S-5)."""
        return self.wal_stores.table_site(shard)

    def wanted_wal(self, recorded: WalStoreRecord) -> str | None:
        """Where a writer of this handle puts the log: as requested, as recorded, or by default."""
        if self.wal_uri is not None:
            return None if self.wal_uri == self.uri else self.wal_uri
        return recorded.uri if recorded.seq else self.record.wal_uri

    def record_wal_move(self, shard: UUID) -> None:
        """S-8: note a move of the log in the table's record: it is the table's, not one shard's.

        Called with the shard open for writing. No request unless the record says otherwise.
        """
        if self.wal_uri is None:
            return
        wanted = None if self.wal_uri == self.uri else self.wal_uri
        # The recorded store under another name is no move (S-1).
        if wanted == self.record.wal_uri or self.wal_stores.recorded(shard).uri != wanted:
            return
        TableRecords(self.store).update(lambda record: replace(record, wal_uri=wanted))
        self.record = replace(self.record, wal_uri=wanted)

    def live_writer(self, shard: UUID) -> ShardWriter | None:
        """The open writer of that shard in this handle, if there is one."""
        writer = self.registered_writers.get(shard)
        return writer if writer is not None and writer.is_open else None

    def refresh(self) -> TableRecord:
        """Read the record again, after resharding for example. One list, one get."""
        self.record = TableRecords(self.store).load()
        return self.record

    @property
    def router(self) -> Router:
        """Routes rows to shards, by the record."""
        return Router(self.record.sharding)

    def shard_ids(self) -> list[UUID]:
        """Every shard on the store, of any origin, in the order of the routing. One listing.

        Lists the store, not the record: native writers and other processes add shards.
        """
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
        # A record never changes, and each has a cache of its own. An id takes 20 us to compute.
        record, known = self._routes
        if record is not self.record:
            record, known = self._routes = self.record, {}
        key = (type(value), value)
        if key not in known:
            if len(known) >= _ROUTES_LIMIT:
                known.clear()
            known[key] = self.shard_of(value, record)
        return known[key]

    def shard_of(self, value: Value, record: TableRecord) -> UUID:
        """The shard that takes the rows of `value` by that record."""
        return record.shard_of(value, self.identity_type(record.sharding, value))

    def ensure_shard(self, value: Value, record: TableRecord | None = None) -> UUID:
        """The shard of `value`, made if it does not exist. Concurrent creators agree.

        Raises `SealedShard` when the routing was or is being changed: nothing new is written under
        the old one. With identity sharding, one list.
        """
        record = record or self.record
        shard = self.shard_of(value, record)
        manifests = self.tails.manifests(self.table_site(shard))
        if isinstance(record.sharding, Identity):
            known = manifests.latest()
            if known is None:
                self._require_routing(record)
                # S-8: its log goes where the table's is by now.
                place = TableRecords(self.store).load().wal_uri
                self.record = replace(self.record, wal_uri=place)
                dtype = self.schema().plain.field(record.sharding.column).type
                entries = field_entries(record.sharding, value, dtype)
                manifests.create(first_manifest(shard, record.spec, entries))
            elif value is not None and not known.field_entries:
                self._name_shard(manifests, known, record.sharding, value)
            # C-11: checked after the shard exists. A reshard writes its record before it lists the
            # shards to seal: either it finds this shard, or we find its record here.
            self._require_routing(record)
        return shard

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
        change = read_resharding(self.store)
        if change is not None and change.routing_version >= record.routing_version:
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
        if manifest is None or not isinstance(sharding, Identity):
            return None
        value = value_from_entries(sharding, manifest.field_entries, self.identity_type(sharding))
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

    def identity_type(self, sharding: Sharding, value: Value = 0) -> pa.DataType | None:
        """The type of the identity column, where the value alone does not determine its bytes."""
        if not isinstance(sharding, Identity) or not isinstance(value, int):
            return None
        return self.known_schema().plain.field(sharding.column).type


def first_manifest(shard: UUID, spec: int, entries: tuple[tuple[str, bytes], ...]) -> ShardManifest:
    """The manifest of a shard nobody has claimed yet; its first writer gets epoch 1."""
    return ShardManifest(
        version=Version(1),
        writer_epoch=Epoch(0),
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
    """The routing of `values`; empty for identity sharding, whose values are not known."""
    if not isinstance(sharding, Unsharded) and not values:
        return ()
    return tuple(Route(shard_id(sharding, v, routing_version), v, spec) for v in values)


def _opened_again(uri: str, storage_options: Mapping[str, str], wal_uri: str | None) -> Core:
    from weir.routing.opening import open as open_core  # which imports this module

    return open_core(uri, storage_options=storage_options, wal_uri=wal_uri)
