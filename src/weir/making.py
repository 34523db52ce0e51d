"""`create`, `open`, `enable`: where tables come from."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import SYSTEM, Env
from weir.format.expiry import Expire
from weir.format.sharding import Sharding
from weir.routing import opening
from weir.routing.opening import Options
from weir.table import Table


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
) -> Table:
    """Make an empty table at `uri` and open it.

    Raises `InvalidInput` for what cannot be (nothing is written), also when something is there
    already; `StoreUnsuitable` when the store does not keep put-if-absent, which is tried. `expire`
    says after what time rows are gone (`Table.set_expire` changes it). About 60 requests for that
    proof, one for each shard, and a handful more.
    """
    return Table(
        opening.create(
            uri,
            schema,
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
    uri: str, *, storage_options: Options = None, wal_uri: str | None = None, env: Env = SYSTEM
) -> Table:
    """Open the table at `uri`. Claims nothing. Five requests.

    `wal_uri` is where this handle reaches the log: the recorded store under another name (another
    mount point, say), or another store, to which its writers then move the log (S-3); the table's
    own URI means beside the data. Raises `NotAWeirTable` when there is none, `MissingEntry` for a
    clone that was not finished (C-2).
    """
    return Table(opening.open(uri, storage_options=storage_options, wal_uri=wal_uri, env=env))


def enable(
    uri: str,
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
    and without nulls.
    Raises `NotAWeirTable` when there is no dataset, `InvalidInput` for what does not fit it.
    """
    return Table(
        opening.enable(
            uri,
            primary_key=primary_key,
            sharding=sharding,
            wal_uri=wal_uri,
            writer_defaults=writer_defaults,
            storage_options=storage_options,
            env=env,
        )
    )
