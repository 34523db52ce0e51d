"""`create`, `open`, `enable`: how a table is made or opened.

Bad input is refused before anything is written. The record is written last: a table whose creation
was interrupted is not a weir table yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import SYSTEM, Env
from weir.errors import CommitConflict, InvalidInput, NotAWeirTable
from weir.format import paths
from weir.format.expiry import Expire
from weir.format.keys import check_key_type
from weir.format.nested import has_small_dictionary
from weir.format.schema import TOMBSTONE, check_nesting, without_views
from weir.format.sharding import (
    FIRST_ROUTING,
    PerWriter,
    Sharding,
    Unsharded,
    check_sharding,
    field_entries,
    from_mem_wal,
    makes_shards,
    mem_wal_settings,
    spec_of,
    values_of,
)
from weir.format.wal_entry import RESERVED_METADATA
from weir.lake.api import Lake
from weir.lake.base import adopt
from weir.lake.links import require_own_folders
from weir.lake.pylance_lake import PylanceLake
from weir.lake.supported import require_supported
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.wal_store import make_folder, require_no_table
from weir.records.enclosing import enclosed_table, enclosing_table, is_within
from weir.records.lineage import require_ready
from weir.records.table import Route, TableRecord, TableRecords
from weir.routing.core import CONCURRENCY, Core, first_manifest, routes_of
from weir.routing.natives import update_mem_wal_index
from weir.routing.sharing import require_shared
from weir.store.api import Store
from weir.store.consent import Consent
from weir.store.open import lance_options, normalize, open_store
from weir.store.probe import prove

Options = Mapping[str, str] | None


class Occupied(InvalidInput):
    """Something is there that may be a table, or may be becoming one in another process."""


def create(
    uri: str,
    schema: pa.Schema,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    expire: Expire | None = None,
    storage_options: Options = None,
    env: Env = SYSTEM,
) -> Core:
    """See `weir.create`."""
    key = _key_names(primary_key)
    schema = without_views(schema)
    _check_schema(schema, key)
    chosen = Unsharded() if sharding is None else sharding
    check_sharding(chosen, schema, key)
    if expire is not None:
        expire.check(schema)
    place = _Place(uri, wal_uri, storage_options, env)
    place.require_new()
    if adopt.find_dataset(place.uri, place.lance) is not None:
        raise Occupied(f"{place.uri} is a Lance dataset already; `enable` makes a weir table of it")
    _require_no_logs(place)
    probed = place.prove()
    dataset = adopt.create_base(place.uri, schema, key, place.lance, expire=expire)
    defaults = writer_defaults or WriterConfig()
    adopt.initialize_mem_wal(dataset, {**mem_wal_settings(chosen), **defaults.to_lance()})
    return _finish(place, dataset.schema, key, chosen, defaults, probed, spec=_first_spec(chosen))


def open(
    uri: str,
    *,
    storage_options: Options = None,
    wal_uri: str | None = None,
    env: Env = SYSTEM,
    to_drop: bool = False,
) -> Core:
    """See `weir.open`. Only `to_drop` opens a table whose drop was begun."""
    store = open_store(uri, storage_options, env=env)
    require_ready(store)
    record = TableRecords(store).load(to_drop=to_drop)
    asked = None if wal_uri is None else normalize(wal_uri)
    is_here = asked == normalize(uri)
    place = _Place(uri, None if is_here else asked or record.wal_uri, storage_options, env, store)
    place.asked_wal = asked
    return place.core(record, record.seq)


def enable(
    uri: str,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Options = None,
    env: Env = SYSTEM,
) -> Core:
    """See `weir.enable`."""
    place = _Place(uri, wal_uri, storage_options, env)
    place.require_new()
    dataset = adopt.find_dataset(place.uri, place.lance)
    if dataset is None:
        raise NotAWeirTable(f"{place.uri} holds no Lance dataset; `create` makes a new table")
    lake = place.pylance()
    base = lake.open_base()
    declared = base.schema.primary_key
    key = _key_names(primary_key) if primary_key is not None else declared
    if declared and key != declared:
        raise InvalidInput(
            f"{place.uri} declares the primary key {list(declared)}, not {list(key)}; leave out"
            " primary_key to keep it"
        )
    _check_schema(base.schema.plain, key, storage_version=dataset.data_storage_version)
    details = base.mem_wal
    if details is not None and key and not declared:
        raise InvalidInput(
            f"{place.uri} has a MemWAL index and no primary key, and pylance cannot add one; leave"
            " out primary_key to adopt it as an append-only table"
        )
    stored = None
    names = {number: name for name, number in base.schema.field_ids.items()}
    if details is not None:
        stored = from_mem_wal(details.sharding_specs, names)
    if stored is not None and sharding is not None and sharding != stored:
        raise InvalidInput(
            f"{place.uri} is already sharded by {stored}, not by {sharding}; leave out sharding to"
            " keep it"
        )
    chosen = stored or sharding or Unsharded()
    check_sharding(chosen, base.schema.plain, key)
    defaults = writer_defaults or WriterConfig()
    if details is not None:
        # Native writers replay within the defaults stored in the index, which stay (F-15).
        defaults = defaults.within(WriterConfig.from_lance(details.writer_defaults))
    if key and not declared:
        adopt.check_no_duplicates(dataset, key)
    spec, every = _first_spec(chosen), True
    if details is not None:
        spec = 0 if stored is None else spec_of(details.sharding_specs, stored, names)
        every = details.maintain_all
    probed = place.prove()
    if key and not declared:
        adopt.mark_key(dataset, key)
    if details is None:
        adopt.initialize_mem_wal(dataset, {**mem_wal_settings(chosen), **defaults.to_lance()})
    # Before others write rows that cannot be matched by field id: Lance 13 assigns ids twice.
    schema = lake.schema_for_writing().plain
    return _finish(place, schema, key, chosen, defaults, probed, spec=spec, maintain_all=every)


def require_own_place(uri: str, options: Options, env: Env) -> None:
    """`InvalidInput` for a new table inside another one, which would collect it, or around one."""
    table = enclosing_table(uri, lambda above: open_store(above, options, env=env))
    if table is not None:  # guard: S-8 test_making_inside
        raise InvalidInput(
            f"{uri} is inside the table {table}, which deletes what it does not know in its"
            " folders; choose a place outside it. Nothing was written"
        )
    inner = enclosed_table(open_store(uri, options, env=env))
    if inner is not None:  # guard: S-8 test_making_inside
        raise InvalidInput(
            f"{uri} would be a table whose folders hold another one, {inner}, and it deletes what"
            " it does not know there; choose another place. Nothing was written"
        )


def _require_no_logs(place: _Place) -> None:
    """`Occupied` for logs that no table explains: their rows would appear in the new table.

    A drop leaves shards whose numbers the new table continues (C-16), and says so in the record.
    """
    folders, _ = place.store.list_folder(paths.SHARDS)
    if folders and not TableRecords(place.store).holds_graves():
        raise Occupied(
            f"{place.uri}/{paths.SHARDS} holds logs of a table that was removed without weir.drop,"
            " or that another process is making right now. Delete that folder, or choose another"
            " place"
        )


class _Place:
    """A URI with everything needed to reach it."""

    def __init__(
        self, uri: str, wal_uri: str | None, options: Options, env: Env, store: Store | None = None
    ) -> None:
        require_supported()  # guard: X-8 test_supported
        self.uri = normalize(uri)
        self.wal_uri = None if wal_uri is None else normalize(wal_uri)
        self.asked_wal = self.wal_uri
        if self.uri.startswith("memory://"):
            raise InvalidInput(
                f"{self.uri}: Lance cannot open a table in memory://, which works as wal_uri only;"
                " use a temporary folder"
            )
        if self.wal_uri is not None and is_within(self.wal_uri, self.uri):
            raise InvalidInput(
                f"wal_uri {self.wal_uri} is the table's own URI, or inside it; leave it out to keep"
                " the log beside the data"
            )
        self.options = dict(options or {})
        self.env = env
        self.store = store or open_store(uri, options, env=env)
        self.wal = self.store if wal_uri is None else open_store(wal_uri, options, env=env)
        self.lance = lance_options(uri, options)

    def require_new(self) -> None:
        """`InvalidInput` unless a table can be made here, as far as weir's own records tell."""
        if TableRecords(self.store).find() is not None:
            raise Occupied(f"{self.uri} is a weir table already: open it, or choose another place")
        require_own_place(self.uri, self.options, self.env)
        require_own_folders(self.uri)

    def prove(self) -> dict[str, object]:
        """Check that a new table may have its log in the WAL store (S-8), and that put-if-absent
        works on both stores; `WalStoreMismatch` and `StoreUnsuitable` if not."""
        if self.wal is not self.store:
            require_no_table(self.wal, lambda uri: open_store(uri, self.options, env=self.env))
        stores = [self.store] if self.wal is self.store else [self.store, self.wal]
        return prove(stores, self.env)

    def lake(self) -> Lake:
        found: Lake | None = None if self.env.places is None else self.env.places.lake(self.uri)
        if found is not None:
            return found
        return self.pylance()

    def pylance(self) -> Lake:
        """Lance at this place, which reads other places only if allowed (G-13)."""
        consent = Consent.of(self.uri, self.options)

        def agree(place: str) -> None:
            require_shared(place, self.store, consent, self.options, self.env)

        return PylanceLake(self.uri, self.lance, self.store, env=self.env, agree=agree)

    def core(self, record: TableRecord, number: int = 0) -> Core:
        """The table with that record; `number` is the record's, if it is known."""
        return Core(
            uri=self.uri,
            storage_options=self.options,
            store=self.store,
            wal=self.wal,
            lake=self.lake(),
            env=self.env,
            record=record,
            known_number=number,
            wal_uri=self.asked_wal,
        )


def _finish(
    place: _Place,
    schema: pa.Schema,
    key: tuple[str, ...],
    sharding: Sharding,
    defaults: WriterConfig,
    probed: dict[str, object],
    *,
    spec: int,
    maintain_all: bool = True,
) -> Core:
    routes = _first_routes(sharding, spec)
    create_shards(place.store, place.wal, place.env, sharding, routes)
    table_id, folder = place.env.new_id(), None
    if place.wal_uri is not None:
        folder = paths.log_folder(table_id, place.env.new_id())
        make_folder(place.wal, folder, place.uri)
    record = TableRecord(
        table_id=table_id,
        primary_key=key,
        sharding=sharding,
        routing=routes,
        routing_version=FIRST_ROUTING,
        spec=spec,
        wal_uri=place.wal_uri,
        wal_folder=folder,
        settings=defaults.to_record(),
        probe=probed,
        created=place.env.clock.wall(),
        maintain_all=maintain_all,
    )
    if place.wal_uri is not None:
        # before it is a table, so no native writer begins a log beside the data.
        update_mem_wal_index(place.core(record))
    records = TableRecords(place.store)
    try:
        number = records.create(record)
    except CommitConflict:
        standing = records.load()
        number = standing.seq
        columns = place.pylance().open_base().schema.plain
        if (standing.primary_key, standing.sharding, columns) != (key, sharding, schema):
            raise
        record = standing  # two callers made the same table at once: both get it
    return place.core(record, number)


def _first_spec(sharding: Sharding) -> int:
    """The id of the spec by which native programs route; 0: there is none, and they name a shard
    by hand (`weir.routing.natives`)."""
    return 0 if isinstance(sharding, PerWriter) else 1


def _first_routes(sharding: Sharding, spec: int) -> tuple[Route, ...]:
    return routes_of(sharding, values_of(sharding), FIRST_ROUTING, spec)


def create_shards(
    store: Store, wal: Store, env: Env, sharding: Sharding, routes: Sequence[Route]
) -> None:
    """Write the first manifest of each shard that has none, concurrently. Idempotent."""
    assert not makes_shards(sharding) or not routes, "these are made as rows come"

    def make(route: Route) -> None:
        log = ShardLog(ShardSite(store, wal, route.shard, env))
        entries = field_entries(sharding, route.value, None)
        log.manifests.create(first_manifest(route.shard, route.spec, entries))

    env.threads.map(make, list(routes), workers=CONCURRENCY)


def _key_names(primary_key: str | Sequence[str] | None) -> tuple[str, ...]:
    if primary_key is None:
        return ()
    names = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            f"primary_key must be a column, a list of columns, or None, got {primary_key!r}"
        )
    if len(set(names)) != len(names):
        raise InvalidInput(f"primary_key names a column twice: {list(names)}")
    return names


def _check_schema(schema: Any, key: Sequence[str], *, storage_version: str | None = None) -> None:
    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"schema must be a pyarrow.Schema, got {type(schema).__name__}")
    if not len(schema):
        raise InvalidInput("the schema has no columns")
    for name in schema.names:
        if name == TOMBSTONE or name.startswith("_row"):
            raise InvalidInput(f"column name {name!r} is reserved; rename the column")
        if not name or "." in name:
            raise InvalidInput(f"column name {name!r}: Lance allows no empty name and no '.'")
        if schema.names.count(name) > 1:
            raise InvalidInput(f"column {name!r} occurs twice")
    for name in RESERVED_METADATA & (schema.metadata or {}).keys():
        raise InvalidInput(
            f"the schema's metadata has a key {name.decode()!r}, which entries of the log use;"
            " rename the key"
        )
    for field in schema:
        check_nesting(field)
    for field in schema:
        if has_small_dictionary(field.type):
            raise InvalidInput(
                f"column {field.name!r}: the index type of {field.type} is too small for the values"
                " of many puts; use int32, or the plain type, which Lance also compresses"
            )
    for name in key:
        if name not in schema.names:
            raise InvalidInput(
                f"primary key column {name!r} is not in the schema; its columns: {schema.names}"
            )
        check_key_type(schema.field(name))
    adopt.check_columns(schema, key, storage_version=storage_version)
