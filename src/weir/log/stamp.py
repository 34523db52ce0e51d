"""The stamp in a WAL store: under which id it holds a shard's log, and for which table.

Keeps
  S-1  identity is checked, not presence: the id in the store must be the id in the record
  S-7  a missing disk, or another one in its place, is noticed at the next entry
  S-8  a log belongs to a table: the store names it, and another table's store is refused
  G-13 a table's record alone opens no new place for its log: the place must name the table, because
       an earlier call named the place, or be empty
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
"""The folder that an empty disk holds."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a WAL store says about a shard's log: its id, and which table it belongs to."""

    store_id: str
    table: str | None
    """The URI of the table that gave the store its id; no record of another table can change it."""


def read_stamp(wal: Store, shard: UUID) -> Stamp | None:
    """The WAL store's stamp for that shard, or None. One get."""
    path = paths.store_id_path(shard)
    try:
        return stamp_in(wal.get(path).data, f"{wal.uri}/{path}")
    except ObjectMissing:
        return None


def stamp_in(data: bytes, path: str) -> Stamp:
    """Decode the stamp at `path`; `CorruptEntry` when it is not one."""
    raw = codec.loads(data, path)
    store_id, table = raw.get("store_id"), raw.get("table")
    if not isinstance(store_id, str) or not isinstance(table, str | None):
        raise CorruptEntry(f"{path} is not a usable WAL store id. {codec.COPY}")
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
    """Write the id unless the store has one; `WalStoreMismatch` when that is a different one."""
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
        f"{wal.uri} holds the log of shard {shard} of the table {by}, but this table is"
        f" {consent.root}. Its records point to another table's log, so weir reads, writes and"
        " deletes nothing there (G-13). If both are one table under two paths, open it under the"
        f" first, or allow the store with the storage option {ALLOW}={wal.uri} (--option on the"
        " command line)"
    )


def name_table(wal: Store, table: str) -> None:
    """Write into the store that the table at that URI keeps its log there. One put.

    Only for a call that names the store, or a store that knows the table already (G-13).
    """
    body = codec.dumps({"table": table})
    with contextlib.suppress(ObjectExists):
        wal.put_if_absent(paths.wal_table_path(real_place(table)), body)


def unname_table(wal: Store, table: str) -> None:
    """Undo `name_table`. One delete."""
    wal.delete([paths.wal_table_path(real_place(table))])


def _is_named(wal: Store, table: str) -> bool:
    return wal.head(paths.wal_table_path(real_place(table))) is not None


def require_named(wal: Store, consent: Consent) -> None:
    """`StoreDenied` unless a log of the table may begin in a store that its record names (G-13).

    It may if the store names the table, or is empty because the disk of the log was replaced (S-2).
    One head. Logs from before stores named tables are recognised by the stamps of their shards.
    """
    table = consent.root
    if _is_named(wal, table):
        return
    # The name is checked again last: a writer of another shard may have begun in between.
    if not (_is_empty(wal) or _holds_a_log_of(wal, table) or _is_named(wal, table)):
        raise consent.refused(
            wal.uri,
            "as a new place of its log, which is not empty and holds no log of the table",
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
        with contextlib.suppress(InvalidInput):  # not a shard's folder
            found = read_stamp(wal, paths.parse_shard_id(name))
            if found is not None and same_place(found.table, table):
                return True
    return False


def require_no_table(wal: Store, shard: UUID) -> None:
    """`WalStoreMismatch` when the store is the place of a table that has this shard (S-8).

    Tables with the same sharding have the same shard ids: our entries would go into the log of that
    table. One list.
    """
    if next(iter(wal.list(paths.manifest_dir(shard))), None) is not None:
        raise WalStoreMismatch(
            f"{wal.uri} is the place of another table, whose shard {shard} has its log there. Give"
            " each table a wal_uri of its own"
        )


def require_new(wal: Store, shard: UUID) -> None:
    """`require_no_table`, and no entries either. Two lists.

    Without a store id they were written by a process that mistook this disk for another, and our
    log would have a hole before them.
    """
    require_no_table(wal, shard)
    if next(iter(wal.list(paths.wal_dir(shard))), None) is not None:
        raise WalStoreMismatch(
            f"{wal.uri} holds entries of shard {shard}, but no WAL store id: they were written"
            " while another disk was mounted there. Use another wal_uri, or delete"
            f" {paths.shard_dir(shard)} there if it is no table's log"
        )


def check_identity(site: ShardSite) -> None:
    """`WalStoreMismatch` unless the store of the site's log is still there, its disk mounted.

    An entry not found on a store of its own is missing only if that store is present (S-7). One
    get, and only for such a log.
    """
    if site.wal_id is not None:
        require_store_id(site.wal, site.shard, site.wal_id)


def check_mounted(site: ShardSite) -> None:
    """`check_identity` before the log is probed; the probes are followed by a second check.

    A disk that is back after them must not vouch for probes of an empty mount point. Only disks
    come and go: for a log on an object store this makes no request.
    """
    if is_local(site.wal):
        check_identity(site)


class MountCheck:
    """`check_identity` for each entry on a local disk, at the cost of one stat.

    The file that holds the id is read again when it is not the one seen last: another disk at the
    same place may bear an id too.
    """

    def __init__(self, site: ShardSite) -> None:
        self._site = site
        self._seen: Meta | None = None

    def check(self) -> None:
        """`WalStoreMismatch` unless the store of the site's log is still there."""
        found = self._site.wal.head(paths.store_id_path(self._site.shard))
        if found is None or found != self._seen:
            check_identity(self._site)
            self._seen = found


def lost_store(wal: Store, shard: UUID, store_id: str | None) -> WalStoreMismatch:
    """The error for a store that should have the log and is empty."""
    return WalStoreMismatch(
        f"{wal.uri} is recorded as the WAL store of shard {shard} (id {store_id}) but does"
        " not hold that id: the disk was wiped, or another disk is mounted. Mount the right one."
        " Without it, reads with freshness='flushed' work, and a writer opens if every row of the"
        " log was flushed (S-2)"
    )
