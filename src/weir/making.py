"""`create`, `open`, `enable`, `exists` and `drop`: functions that make, find and delete tables."""

from __future__ import annotations

import os
from collections.abc import Sequence

from weir.config import WriterConfig
from weir.env import SYSTEM, Env
from weir.format.expiry import Expire
from weir.format.schema_forms import SchemaLike, as_schema
from weir.format.sharding import Sharding
from weir.records.table import TableRecords
from weir.routing import opening
from weir.routing.opening import Options
from weir.store.open import open_store
from weir.table import Table
from weir.upkeep.drop import drop as drop_core


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
    return Table(
        opening.create(
            os.fspath(uri),
            as_schema(schema),
            primary_key=primary_key,
            sharding=sharding,
            wal_uri=wal_uri,
            writer_defaults=writer_defaults,
            expire=expire,
            storage_options=storage_options,
            env=env,
        )
    )


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
    return Table(
        opening.open(os.fspath(uri), storage_options=storage_options, wal_uri=wal_uri, env=env)
    )


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
    return Table(
        opening.enable(
            os.fspath(uri),
            primary_key=primary_key,
            sharding=sharding,
            wal_uri=wal_uri,
            writer_defaults=writer_defaults,
            storage_options=storage_options,
            env=env,
        )
    )


def exists(
    uri: str | os.PathLike[str], *, storage_options: Options = None, env: Env = SYSTEM
) -> bool:
    """Whether there is a weir table at `uri`. One listing, one read."""
    store = open_store(os.fspath(uri), storage_options, env=env)
    return TableRecords(store).find() is not None


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
    drop_core(opening.open(place, storage_options=storage_options, env=env, to_drop=True))
