"""What a WAL store says of itself: under which id it holds a shard's log, and of which table.

Keeps
  S-1  identity is checked, not presence: the id in the store must be the id in the record
  S-7  a disk that is gone, or another in its place, is noticed with the next entry
  S-8  a log belongs to a table: the store names it, and a store of another is refused
  G-13 a table's record alone opens no new place for its log: the place names the table, because a
       call named the place before, or there is nothing in it
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.errors import CorruptEntry, InvalidInput, WalStoreMismatch
from weir.format import paths
from weir.log.site import ShardSite
from weir.records import codec
from weir.store.api import Meta, ObjectExists, ObjectMissing, Store, is_local
from weir.store.consent import ALLOW, Consent, real_place, same_place

_DISKS_OWN: Final = "lost+found"
"""What an empty disk holds."""


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
        return stamp_in(wal.get(path).data, f"{wal.uri}/{path}")
    except ObjectMissing:
        return None


def stamp_in(data: bytes, path: str) -> Stamp:
    """What the object at `path` says; `CorruptEntry` when it is none."""
    raw = codec.loads(data, path)
    store_id, table = raw.get("store_id"), raw.get("table")
    if not isinstance(store_id, str) or not isinstance(table, str | None):
        raise CorruptEntry(f"{path} is not a usable id of a WAL store. {codec.COPY}")
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
        f" allow the store by the storage option {ALLOW}={wal.uri} (--option on the command line)"
    )


def name_table(wal: Store, table: str) -> None:
    """Write into the store that the table at that URI keeps its log there. One put.

    Only for a call that names the store, or a store that knows the table already (G-13).
    """
    body = codec.dumps({"table": table})
    with contextlib.suppress(ObjectExists):
        wal.put_if_absent(paths.wal_table_path(real_place(table)), body)


def unname_table(wal: Store, table: str) -> None:
    """Take that word back. One delete."""
    wal.delete([paths.wal_table_path(real_place(table))])


def _is_named(wal: Store, table: str) -> bool:
    return wal.head(paths.wal_table_path(real_place(table))) is not None


def require_named(wal: Store, consent: Consent) -> None:
    """`StoreDenied` unless a log of the table may begin in a store that its record names (G-13).

    It may where the store names the table, or where nothing is: the disk of the log was replaced by
    an empty one (S-2). One head; what was made before stores named tables is known by its shards.
    """
    table = consent.root
    if _is_named(wal, table):
        return
    # Asked again after the look: a writer of another shard may have begun in between.
    if not (_is_empty(wal) or _holds_a_log_of(wal, table) or _is_named(wal, table)):
        raise consent.refused(
            wal.uri, "as a new place of its log, which does not know the table and is not empty"
        )
    name_table(wal, table)


def _is_empty(wal: Store) -> bool:
    folders, objects = wal.list_folder("")
    if objects:
        return False
    ours = (f"{paths.CLOCK}/", f"{paths.PROBE}/")
    return not any(
        not found.path.startswith(ours)
        for folder in folders
        if folder != _DISKS_OWN
        for found in wal.list(folder)
    )


def _holds_a_log_of(wal: Store, table: str) -> bool:
    folders, _ = wal.list_folder(paths.SHARDS)
    for name in folders:
        with contextlib.suppress(InvalidInput):  # a folder of somebody else's
            found = read_stamp(wal, paths.parse_shard_id(name))
            if found is not None and same_place(found.table, table):
                return True
    return False


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


def require_new(wal: Store, shard: UUID) -> None:
    """`require_no_table`, and no entries either: without the id of a store they were put there by
    somebody who took this disk for another, and our log would have a hole before them. Two lists.
    """
    require_no_table(wal, shard)
    if next(iter(wal.list(paths.wal_dir(shard))), None) is not None:
        raise WalStoreMismatch(
            f"{wal.uri} holds entries of shard {shard}, and no id that says whose they are: another"
            " disk was mounted in its place when they were written. Use another place, or remove"
            f" {paths.shard_dir(shard)} there if the log of no table is in it"
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
