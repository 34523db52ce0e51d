"""What a WAL store says of itself: under which id it holds a shard's log, and of which table.

Keeps
  S-1  identity is checked, not presence: the id in the store must be the id in the record
  S-7  a disk that is gone, or another in its place, is noticed with the next entry
  S-8  a log belongs to a table: the store names it, and a store of another is refused
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from weir.errors import CorruptEntry, WalStoreMismatch
from weir.format import paths
from weir.log.site import ShardSite
from weir.records import codec
from weir.store.api import Meta, ObjectExists, ObjectMissing, Store, is_local
from weir.store.consent import ALLOW, Consent


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a WAL store says of a shard's log: the id it is known by, and whose it is."""

    store_id: str
    table: str | None
    """The URI of the table that gave the store its id; a record of another cannot change it."""


def read_stamp(wal: Store, shard: UUID) -> Stamp | None:
    """What the WAL store says of that shard, or None. One get."""
    path = paths.store_id_path(shard)
    try:
        return stamp_in(wal.get(path).data, path)
    except ObjectMissing:
        return None


def stamp_in(data: bytes, path: str) -> Stamp:
    """What the object at `path` says; `CorruptEntry` when it is none."""
    raw = codec.loads(data, path)
    store_id, table = raw.get("store_id"), raw.get("table")
    if not isinstance(store_id, str) or not isinstance(table, str | None):
        raise CorruptEntry(f"{path} is not a usable id of a WAL store")
    return Stamp(store_id, table)


def read_store_id(wal: Store, shard: UUID) -> str | None:
    """The id the WAL store holds for that shard, or None. One get."""
    found = read_stamp(wal, shard)
    return None if found is None else found.store_id


def require_store_id(wal: Store, shard: UUID, store_id: str) -> None:
    """`WalStoreMismatch` unless the store bears that id for the shard (S-1, S-8). One get."""
    found = read_store_id(wal, shard)
    if found is None:
        raise lost_store(wal, shard, store_id)
    if found != store_id:
        raise foreign_store(wal, shard, found)


def stamp_store_id(wal: Store, shard: UUID, store_id: str, table: str) -> None:
    """Write the id unless one is there; `WalStoreMismatch` when it is another's."""
    body = codec.dumps({"store_id": store_id, "table": table, "shard": str(shard)})
    try:
        wal.put_if_absent(paths.store_id_path(shard), body)
    except ObjectExists:
        found = read_store_id(wal, shard)
        if found != store_id:
            raise foreign_store(wal, shard, found) from None


def foreign_store(wal: Store, shard: UUID, found: str | None) -> WalStoreMismatch:
    """The error for a store that holds the log of another table, or another store than recorded."""
    return WalStoreMismatch(
        f"{wal.uri} holds a log of shard {shard} under the id {found}, which is not this table's:"
        " it is the WAL store of another table, or another disk than the one recorded. Give each"
        " table a wal_uri of its own, or mount the right disk (S-1)"
    )


def anothers_store(wal: Store, shard: UUID, by: str | None, consent: Consent) -> WalStoreMismatch:
    """The error for a store whose log belongs to another table, whatever our records say (S-8)."""
    return WalStoreMismatch(
        f"{wal.uri} holds the log of shard {shard} of the table at {by}, and this is"
        f" {consent.root}: its records lead to another table's log, and nothing is read, written or"
        " deleted there (G-13). If both are one table under two paths, open it under the first, or"
        f" allow the store: storage_options={{{ALLOW!r}: {wal.uri!r}}}"
    )


def require_no_table(wal: Store, shard: UUID) -> None:
    """`WalStoreMismatch` when that shard of some table is in the store itself, log and all (S-8).

    Tables with the same sharding have shards of the same ids: our entries would go into its log.
    One list.
    """
    if next(iter(wal.list(paths.manifest_dir(shard))), None) is not None:
        raise WalStoreMismatch(
            f"{wal.uri} is the place of another table, with a shard {shard} of its own: its log is"
            " there, and no other may be. Give each table a wal_uri of its own"
        )


def check_identity(site: ShardSite) -> None:
    """`WalStoreMismatch` unless the site's log is where it was met: a disk may be unmounted since.

    What is not found in a store of its own is not there only if the store is (S-7). One get, and
    only for such a log.
    """
    if site.wal_id is not None:
        require_store_id(site.wal, site.shard, site.wal_id)


def check_mounted(site: ShardSite) -> None:
    """`check_identity` before the log is looked at; the look is followed by another one.

    What was looked for in a hole must not be proved by the disk that is back after it. Only a disk
    comes and goes: for a log on an object store this asks nothing.
    """
    if is_local(site.wal):
        check_identity(site)


class Presence:
    """`check_identity` for each entry on a local disk, at the price of one stat.

    The file that holds the id is read again when it is not the one seen last: another disk in the
    same place may bear an id too.
    """

    def __init__(self, site: ShardSite) -> None:
        self._site = site
        self._seen: Meta | None = None

    def check(self) -> None:
        """`WalStoreMismatch` unless the site's log is where it was met."""
        found = self._site.wal.head(paths.store_id_path(self._site.shard))
        if found is None or found != self._seen:
            check_identity(self._site)
            self._seen = found


def lost_store(wal: Store, shard: UUID, store_id: str | None) -> WalStoreMismatch:
    """The error for a store that should have the log and is empty."""
    return WalStoreMismatch(
        f"{wal.uri} is recorded as the WAL store of shard {shard} (id {store_id}) but does"
        " not hold that id: the disk was wiped, or it is the disk of another machine. Reads with"
        " freshness='flushed' need no log; a writer can be opened if no row was left in it (S-2)"
    )
