"""`create`, `open`, `enable`, `exists` and `drop`: functions that make, find and delete tables.

Bad input is refused before anything is written. The record is written last: a table whose creation
was interrupted is not a weir table yet.

Keeps
  P-9  of a table that is made with rows the record is written first, and says so: nobody but the
       maker finds it until `complete`, and whoever makes a table there drops what a dead one left
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from msgspec import structs

from weir.config import WriterConfig, chosen_config
from weir.env import SYSTEM, Env, takes_env
from weir.errors import CommitConflict, InvalidInput, NotAWeirTable
from weir.format import paths
from weir.format.expiry import Expire, check_expire
from weir.format.keys import check_key_type
from weir.format.nested import has_small_dictionary
from weir.format.schema import TOMBSTONE, check_nesting, without_views
from weir.format.schema_forms import SchemaLike, as_schema
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
from weir.lake.base import adopt
from weir.lake.links import require_own_folders
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.wal_store import make_folder, require_no_table
from weir.records.table import Route, TableRecord, TableRecords, replaced
from weir.routing.core import CONCURRENCY, first_manifest, routes_of
from weir.routing.natives import update_mem_wal_index
from weir.routing.opening import Options, Place, require_own_place
from weir.routing.opening import open as open_core
from weir.store.api import Store
from weir.store.open import open_store
from weir.store.probe import prove
from weir.table import Table
from weir.upkeep.drop import drop as drop_core


class Occupied(InvalidInput):
    """Something is there that may be a table, or may be becoming one in another process."""


@takes_env
def create(
    uri: str | os.PathLike[str],
    schema: SchemaLike,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    expire: Expire | None = None,
    storage_options: Options = None,
    env: Env = SYSTEM,
) -> Table:
    """Make an empty table at `uri` and open it.

    `schema` is a pyarrow schema, a DataFrame or Arrow table that has the columns, a dict of names
    and types as text (`{"id": "int64", "embedding": "float32[768]"}`), or a pydantic model class.
    Raises `InvalidInput` for arguments that do not fit, or when something is there already, or the
    place is inside another table (nothing is written); `StoreUnsuitable` when the store fails a
    probe of put-if-absent. `expire` says when rows expire (`Table.set_expire` changes it). About 60
    requests for the probe, two for each folder above, one for each shard, and a handful more.
    """
    place = Place(os.fspath(uri), wal_uri, storage_options, env)
    return _create(place, schema, primary_key, sharding, writer_defaults, expire)


def begin(
    uri: str,
    schema: pa.Schema,
    *,
    maker: UUID,
    primary_key: Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Options = None,
    env: Env = SYSTEM,
) -> Table:
    """Make a table of that id that only its maker finds, until `complete` (P-9). See `create`."""
    place = Place(uri, wal_uri, storage_options, env)
    return _create(place, schema, primary_key, sharding, writer_defaults, maker=maker)


def complete(table: Table) -> None:
    """Let everybody find the table that `begin` made; `NotAWeirTable` if others dropped it."""

    def done(record: TableRecord) -> TableRecord:
        if record.state == "dropping":
            raise replaced(table.uri)
        return structs.replace(record, state=None)

    core = table.core
    core.env.failpoint("making.filled")
    core.records().update(done, core.env)


def _create(
    place: Place,
    schema: SchemaLike,
    primary_key: str | Sequence[str] | None,
    sharding: Sharding | None,
    writer_defaults: WriterConfig | None,
    expire: Expire | None = None,
    maker: UUID | None = None,
) -> Table:
    key = _key_names(primary_key)
    plain = without_views(as_schema(schema))
    _check_schema(plain, key)
    chosen = Unsharded() if sharding is None else sharding
    check_sharding(chosen, plain, key)
    check_expire(expire, plain)
    defaults = chosen_config(writer_defaults, WriterConfig())
    _require_new(place)
    if adopt.find_dataset(place.uri, place.lance) is not None:
        raise Occupied(f"{place.uri} is a Lance dataset already; `enable` makes a weir table of it")
    _require_no_logs(place)
    probed = _prove(place)
    record = _first_record(place, key, chosen, defaults, probed, spec=_first_spec(chosen))
    number = 0
    if maker is not None:
        record = structs.replace(record, table_id=maker, state="making")
        number = TableRecords(place.store).create(record)
    dataset = adopt.create_base(place.uri, plain, key, place.lance, expire=expire)
    adopt.initialize_mem_wal(dataset, {**mem_wal_settings(chosen), **defaults.to_lance()})
    return _finish(place, dataset.schema, record, number)


@takes_env
def open(
    uri: str | os.PathLike[str],
    *,
    storage_options: Options = None,
    wal_uri: str | None = None,
    env: Env = SYSTEM,
) -> Table:
    """Open the table at `uri`. Claims nothing. Five requests.

    `wal_uri` is where this handle reaches the log: the recorded store under another name (another
    mount point, say), or another store, to which its writers then move the log; the table's
    own URI means beside the data. Raises `NotAWeirTable` when there is no table, `MissingEntry` for
    an unfinished clone.
    """
    place = os.fspath(uri)
    return Table(open_core(place, storage_options=storage_options, wal_uri=wal_uri, env=env))


@takes_env
def enable(
    uri: str | os.PathLike[str],
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Options = None,
    env: Env = SYSTEM,
) -> Table:
    """Adopt the Lance dataset at `uri` in place and open it as a table.

    A key or sharding the dataset already declares (pylance's MemWAL) is kept, and shards that
    pylance made stay readable. With a new key the key columns are read once: they must be unique
    and without nulls. Raises `NotAWeirTable` when there is no dataset, `InvalidInput` for arguments
    that do not fit it, and for a dataset inside a table.
    """
    place = Place(os.fspath(uri), wal_uri, storage_options, env)
    _require_new(place)
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
    defaults = chosen_config(writer_defaults, WriterConfig())
    if details is not None:
        # Native writers replay within the defaults stored in the index, which stay (F-15).
        defaults = defaults.within(WriterConfig.from_lance(details.writer_defaults))
    if key and not declared:
        adopt.check_no_duplicates(dataset, key)
    spec, every = _first_spec(chosen), True
    if details is not None:
        spec = 0 if stored is None else spec_of(details.sharding_specs, stored, names)
        every = details.maintain_all
    probed = _prove(place)
    if key and not declared:
        adopt.mark_key(dataset, key)
    if details is None:
        adopt.initialize_mem_wal(dataset, {**mem_wal_settings(chosen), **defaults.to_lance()})
    # Before others write rows that cannot be matched by field id: Lance 13 assigns ids twice.
    schema = lake.schema_for_writing().plain
    record = _first_record(place, key, chosen, defaults, probed, spec=spec, maintain_all=every)
    return _finish(place, schema, record)


@takes_env
def exists(
    uri: str | os.PathLike[str], *, storage_options: Options = None, env: Env = SYSTEM
) -> bool:
    """Whether there is a weir table at `uri`. One listing, one read."""
    found = TableRecords(open_store(os.fspath(uri), storage_options, env=env)).find()
    return found is not None and found.state != "making"


@takes_env
def drop(
    uri: str | os.PathLike[str], *, storage_options: Options = None, env: Env = SYSTEM
) -> None:
    """Delete the table at `uri`: rows, logs, SSTables, checkpoints. There is no way back.

    Its writers are fenced first, in any process, and no shard can be claimed again, so no later put
    is acknowledged. Only the folders the table writes to are deleted; other files beside them stay.
    Raises `NotAWeirTable`; `InvalidInput` while a clone shares its files. After a failure, run it
    again. A claim for each shard, a listing, and a request per thousand objects.
    """
    place = os.fspath(uri)
    drop_core(open_core(place, storage_options=storage_options, env=env, to_drop=True))


def _require_new(place: Place) -> None:
    """`InvalidInput` unless a table can be made here, as far as weir's own records tell."""
    found = TableRecords(place.store).find()
    if found is not None and found.state == "making":
        drop(place.uri, storage_options=place.options, env=place.env)
    elif found is not None:
        raise Occupied(f"{place.uri} is a weir table already: open it, or choose another place")
    require_own_place(place.uri, place.options, place.env)
    require_own_folders(place.uri)


def _prove(place: Place) -> dict[str, object]:
    """Check that a new table may have its log in the WAL store (S-8), and that put-if-absent works
    on both stores; `WalStoreMismatch` and `StoreUnsuitable` if not."""
    stores = [place.store]
    if place.wal is not place.store:
        require_no_table(place.wal, lambda uri: open_store(uri, place.options, env=place.env))
        stores.append(place.wal)
    return prove(stores, place.env)


def _require_no_logs(place: Place) -> None:
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


def _first_record(
    place: Place,
    key: tuple[str, ...],
    sharding: Sharding,
    defaults: WriterConfig,
    probed: dict[str, object],
    *,
    spec: int,
    maintain_all: bool = True,
) -> TableRecord:
    new_id = place.env.new_id
    table_id = new_id()
    return TableRecord(
        table_id=table_id,
        primary_key=key,
        sharding=sharding,
        routing=_first_routes(sharding, spec),
        routing_version=FIRST_ROUTING,
        spec=spec,
        wal_uri=place.wal_uri,
        wal_folder=None if place.wal_uri is None else paths.log_folder(table_id, new_id()),
        settings=defaults.to_record(),
        probe=probed,
        created=place.env.clock.wall(),
        maintain_all=maintain_all,
    )


def _finish(place: Place, schema: pa.Schema, record: TableRecord, number: int = 0) -> Table:
    """Make the shards, and write the record unless its number says that it is."""
    create_shards(place.store, place.wal, place.env, record.sharding, record.routing)
    if record.wal_folder is not None:
        make_folder(place.wal, record.wal_folder, place.uri)
        # before it is a table, so no native writer begins a log beside the data.
        update_mem_wal_index(place.core(record))
    if number:
        return Table(place.core(record, number))
    records = TableRecords(place.store)
    try:
        number = records.create(record)
    except CommitConflict:
        standing = records.load()
        number = standing.seq
        wanted = (record.primary_key, record.sharding, schema)
        columns = place.pylance().open_base().schema.plain
        if (standing.primary_key, standing.sharding, columns) != wanted:
            raise
        record = standing  # two callers made the same table at once: both get it
    return Table(place.core(record, number))


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
