"""`Shard`: a user's handle of one shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig, chosen_config
from weir.errors import CommitConflict, InvalidInput, NotAWeirTable, SchemaMismatch
from weir.format.manifest import ShardManifest
from weir.format.python_values import from_python
from weir.format.schema import TableSchema
from weir.format.sharding import (
    Identity,
    PerWriter,
    Router,
    Unsharded,
    Value,
    makes_shards,
)
from weir.lake.api import Base
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.routing.core import CONCURRENCY, Core
from weir.routing.former import former_shards
from weir.routing.guard import find_rivals, require_no_rival
from weir.routing.statements import settle_shard
from weir.shard.large_batch import LargeBatch
from weir.shard.opening import move_log, open_writer
from weir.shard.turns import WaiterGroup
from weir.shard.writer import Belongs, ShardWriter


class Shard:
    """One shard of a table. Cheap; holds nothing open."""

    def __init__(self, core: Core, shard: UUID, value: Value, *, is_routed: bool = True) -> None:
        """Use `Table.shard` or `Table.shards`."""
        self._core = core
        self.id = shard
        self.value = value
        """The bucket, the value of the identity column, whose rows it takes (`PerWriter`), or
        None."""
        self.is_routed = is_routed
        """False for a shard that another program made: it is read, but no row is sent to it."""

    def __repr__(self) -> str:
        return f"Shard({self.id}, value={self.value!r}, table={self._core.uri!r})"

    def __eq__(self, other: object) -> bool:
        """True for handles of one shard of one table."""
        if not isinstance(other, Shard):
            return NotImplemented
        return (self.id, self._core.uri) == (other.id, other._core.uri)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def uri(self) -> str:
        """Where its table is."""
        return self._core.uri

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
        return self._core.log(self.id).current_site()

    @property
    def log(self) -> ShardLog:
        """Its manifest and its log, across moves."""
        return self._core.log(self.id)

    @property
    def table_schema(self) -> TableSchema:
        """The table's schema with its field ids. One listing."""
        return self._core.schema()

    def manifest(self) -> ShardManifest:
        """The latest manifest. Three requests when nothing changed."""
        self._core.record_number()  # C-16: of this table, not of one made here since
        manifest = self.log.latest()
        if manifest is None or manifest.dropped:
            raise NotAWeirTable(f"{self.log} does not exist; `Table.shards` lists those that do")
        return manifest

    def writer(
        self, config: WriterConfig | None = None, *, schema: TableSchema | None = None
    ) -> ShardWriter:
        """Claim the shard and fence every other writer of it; see `ShardWriter.open`.

        Without `config` the table's `writer_defaults` apply; with one they still bound the size of
        a generation, since the next writer of the shard replays by them. `schema` is an
        earlier result of `schema_for_writing`, for callers that keep the columns they know.
        """
        schema = schema or _check_writable(self._core)  # a caller with a schema has checked
        with self._core.opening(self.id):
            return registered_writer(self._core, self, config, schema)

    def load(self, config: WriterConfig) -> LargeBatch:
        """Claim the shard for one batch too large for a log entry (`weir.shard.large_batch`).

        Opens a writer with `config` first, which flushes the log.
        """
        _check_writable(self._core)

        def flush() -> ShardSite:
            with unregistered_writer(
                self._core, self, replace(config, enable_memtable=True)
            ) as writer:
                writer.flush()
                return writer.site

        return LargeBatch.open(
            flush,
            schema=schema_for_writing(self._core),
            lake=self._core.lake,
            env=self._core.env,
            belongs=_belongs(self._core, self),
            fence_ttl=config.fence_ttl,
        )

    def schema_for_writing(self) -> TableSchema:
        """The schema for a caller that appends to the log itself, after the checks of a writer.

        Raises what opening a writer of the shard raises before its claim.
        """
        schema = _check_writable(self._core) or self.table_schema  # guard: X-1 first
        self._core.record_number()
        if self.is_routed:
            require_no_rival(self._core, self.id, self.value)
        return schema

    def site_for_writing(self, schema: TableSchema) -> ShardSite:
        """Where the shard is, its log moved first if the table wants it elsewhere.

        Nothing is claimed unless the log moves or its store was lost; see `open_writer`.
        """
        core = self._core
        site = move_log(
            core.wal_stores,
            self.id,
            core.wanted_wal,
            schema=schema,
            lake=core.lake,
            config=self.writer_defaults,
        )
        core.record_wal_move(site)
        return site

    @property
    def writer_defaults(self) -> WriterConfig:
        """The table's."""
        return self._core.record.writer_defaults

    def tailer(self, start: int | None = None, *, fences: bool = False) -> WalTailer:
        """A reader of the shard's log; see `WalTailer`."""
        return WalTailer(self.log, start, fences=fences)


def _check_writable(core: Core) -> TableSchema | None:
    """Make a writer's checks for a shard opened on its own, as engine tasks do (X-1, X-3)."""
    if core.before_writing is None:
        return None
    found = core.before_writing(core)
    core.before_writing = None  # once a handle; `Table.writer` checks each time
    return found


def schema_for_writing(core: Core, base: Base | None = None) -> TableSchema:
    """The latest schema, its columns marked (`weir.format.schema`).

    One listing when no column needs a mark, none with the latest `base`. Raises `CorruptEntry` as
    `Core.base` does.
    """
    schema = (base or core.base()).schema
    return core.lake.schema_for_writing() if schema.unmarked else schema


def all_shards(core: Core) -> list[Shard]:
    """Every shard, those of the routing first. Costs what `Table.shards` costs."""
    routed = {route.shard: route for route in core.record.routing}
    ids = core.shard_ids()
    strange = [shard for shard in ids if shard not in routed]

    def latest(shard: UUID) -> ShardManifest | None:
        return core.log(shard).latest()

    found = dict(
        zip(strange, core.env.threads.map(latest, strange, workers=CONCURRENCY), strict=True)
    )
    find_rivals(core, found.values())
    shards = []
    for shard in ids:
        if shard in routed:
            shards.append(Shard(core, shard, routed[shard].value))
        elif found[shard] is not None:
            value = core.value_of(shard, found[shard])
            own = makes_shards(core.record.sharding) and core.route(value) == shard
            shards.append(Shard(core, shard, value, is_routed=own))
    return shards


def find_shard(core: Core, id_or_value: UUID | Value) -> Shard:
    """The shard with that id, bucket or value of the identity column, made if necessary."""
    shard = named_shard(core, id_or_value)
    if isinstance(core.record.sharding, Identity) and not isinstance(id_or_value, UUID):
        core.ensure_shard(shard.value)
    return shard


def named_shard(core: Core, id_or_value: UUID | Value) -> Shard:
    """`find_shard` that makes nothing: an identity shard may not exist yet."""
    if isinstance(id_or_value, UUID):
        for shard in all_shards(core):
            if shard.id == id_or_value:
                return shard
        raise InvalidInput(
            f"{core.uri} has no shard {id_or_value}; table.shards() lists the existing ones"
        )
    for route in core.record.routing:
        same_kind = type(route.value) is type(id_or_value)
        if same_kind and route.value == id_or_value:
            return Shard(core, route.shard, route.value)
    if isinstance(core.record.sharding, Unsharded) and id_or_value == 0:
        return named_shard(core, None)
    if isinstance(core.record.sharding, PerWriter) and isinstance(id_or_value, str):
        for shard in all_shards(core):
            if shard.value == id_or_value:
                return shard
    if isinstance(core.record.sharding, Identity):
        columns = core.known_schema().plain
        core.router.require_column(columns.names)
        column = columns.field(core.record.sharding.column)
        try:
            found = from_python([id_or_value], column.type, column.name)
        except SchemaMismatch as error:
            raise InvalidInput(
                f"{core.uri} has no shard {id_or_value!r}: sharding column {column.name!r} is"
                f" {column.type}: {error}"
            ) from error
        if id_or_value is not None or column.nullable:
            value: Value = found[0].as_py()
            return Shard(core, core.shard_of(value, core.record), value)
    raise InvalidInput(
        f"{core.uri} is sharded by {core.record.sharding} and has no shard {id_or_value!r};"
        " table.shards() lists the existing ones"
    )


def registered_writer(
    core: Core,
    shard: Shard,
    config: WriterConfig | None,
    schema: TableSchema | None,
    crowd: WaiterGroup | None = None,
    *,
    only_left: bool = False,
) -> ShardWriter:
    """`Shard.writer`, with a crowd; `only_left` as in `claim_shard`. `Core.opening` is held."""
    opened = unregistered_writer(
        core, shard, config, schema=schema, crowd=crowd, only_left=only_left
    )
    core.register(shard.id, opened)
    return opened


def checking_writer(core: Core, shard: Shard, config: WriterConfig) -> ShardWriter:
    """Claim the shard for a statement over several shards, which is open in it itself (P-8)."""
    schema = _check_writable(core)
    with core.opening(shard.id):
        return unregistered_writer(core, shard, config, schema=schema, settles=False)


def unregistered_writer(
    core: Core,
    shard: Shard,
    config: WriterConfig | None = None,
    *,
    schema: TableSchema | None = None,
    crowd: WaiterGroup | None = None,
    only_left: bool = False,
    settles: bool = True,
) -> ShardWriter:
    """Like `Shard.writer`, for upkeep that claims a shard only for a moment.

    It is not registered with the handle: checkpoints still flush through the user's own writer
    (K-3). `settles=False`: for a statement that is open in the shard itself (P-8).
    """
    core.record_number()  # C-16: before the claim, which would fence the next table's writer
    if shard.is_routed:
        require_no_rival(core, shard.id, shard.value)
    defaults = core.record.writer_defaults
    opened = open_writer(
        core.wal_stores,
        shard.id,
        core.wanted_wal,
        schema=schema or schema_for_writing(core),
        lake=core.lake,
        config=chosen_config(config, defaults).within(defaults),
        belongs=_belongs(core, shard),
        crowd=crowd,
        only_left=only_left,
    )
    if shard.is_routed:
        opened.once.former = former_shards(core)
        opened.before_looking = partial(require_folded, core, core.record.routing_version)
    try:
        core.record_number()  # C-16: after the claim, which a drop that comes later fences
        core.record_wal_move(opened.site)
        if settles:
            settle_shard(core, opened)
    except BaseException:
        opened.close()
        raise
    return opened


def _belongs(core: Core, shard: Shard) -> Belongs | None:
    """Which rows belong to the shard; None where all do."""
    if not shard.is_routed or core.router.column_name is None:
        return None
    return _RowsOf(core, core.router, shard.value)


@dataclass(frozen=True)
class _RowsOf:
    """Which rows belong to the shard of one value; see `weir.log.intake.Owns`."""

    core: Core
    router: Router
    value: Value

    def __call__(self, batch: pa.RecordBatch, /) -> pa.Array:
        return self.router.mask(batch, self.value)

    def home(self, row: pa.RecordBatch, /) -> str:
        ((value, _),) = self.router.values(row)
        return f"that of {value!r} ({self.core.shard_of(value, self.core.record)})"


def require_folded(core: Core, routing: int) -> None:
    """Raise `CommitConflict` while a shard outside the routing holds rows that are not in the base.

    The owner of a shard does not see them, and would decide as if they were not there (O-2).
    `routing` is the one that the owner was opened under. One listing; three requests more, and two
    for each such shard, if the table was resharded.
    """
    if not set(core.shard_ids()).difference(route.shard for route in core.record.routing):
        return
    if core.refresh().routing_version != routing:  # guard: C-11 test_looking_table
        return  # the owner was sealed: what it decides meets the fence, and follows its rows
    strange = [shard for shard in all_shards(core) if not shard.is_routed]
    if not strange:
        return
    base = core.base()
    for shard in strange:
        manifest = shard.manifest()
        folded = base.compacted.get(shard.id, 0)
        floors = core.log(shard.id).manifests.floors.load()
        waits = any(table.generation > folded for table in manifest.sstables)
        if waits or core.log(manifest.shard_id).end(manifest, floors)[1] > manifest.replay_after:
            raise CommitConflict(
                f"{core.uri}: shard {shard.id} is outside the routing and holds rows that are not"
                " in the base yet. A shard's own reads, and writes that read first (insert, update,"
                " put with `when`), would miss them. Run compact(), then retry; if another program"
                " writes to the shard, run weir adopt-shard instead"
            )
