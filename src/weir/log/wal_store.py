"""Where the logs of one table are: beside the data, or in a folder of a second store.

The shard's manifest names the place by its number (`records/places.py`). A folder in a WAL store
belongs to one table and to one incarnation of its logs: a move or a replacement takes a new one, so
one WAL store serves any number of tables, and another disk in the place of ours does not hold it.

Keeps
  S-1  a folder that is not there is an error of the store, never an empty log: no request to it
       creates the folder, only `make_folder` does
  S-3  a move counts from the manifest on that names the new place; whoever claims the shard
       meanwhile races for the same manifest version
  S-5  reading the log without its store fails at open, not with a 404 later
  S-8  the folder names the table whose logs it holds, and only that table's handles go there
  G-13 a table's record alone opens no new place for its log: the folder must name the table
  X-1  a manifest that does not name the place where the log was put is not believed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from weir.config import FENCE_TTL
from weir.env import Env
from weir.errors import CommitConflict, StoreError, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.log.floors import FloorValues
from weir.log.site import LogSegment, ShardSite
from weir.records import codec
from weir.records.enclosing import enclosing_table
from weir.records.places import BESIDE_THE_DATA, LogPlace, all_places, load_place
from weir.records.table import TableRecord, TableRecords
from weir.store.api import ObjectExists, ObjectMissing, RootMissing, Store
from weir.store.consent import ALLOW, Consent, same_place
from weir.store.probe import prove

_DISKS_OWN: Final = "lost+found"
"""The folder that an empty disk holds."""


class WalMoved(CommitConflict):
    """The log was moved to another place while the shard was being opened; open it again."""


class LogFolderMissing(WalStoreMismatch):
    """The folder that a record names is not there: its disk is away, or was wiped or replaced."""


class LogOwner(Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder in a WAL store says of itself."""

    table: str
    """The URI of the table whose logs it holds; no record of another table can change it."""


def make_folder(wal: Store, folder: str, table: str) -> None:
    """Begin a folder for the logs of the table at that URI. One put.

    Only for a call that names the WAL store, and where `admits` says so (G-13).
    """
    with contextlib.suppress(ObjectExists):
        wal.put_if_absent(f"{folder}/{paths.LOG_OWNER}", codec.dumps(LogOwner(table)))


def require_no_table(wal: Store, open_at: Callable[[str], Store]) -> None:
    """`WalStoreMismatch` when a table is there, or in a folder above: its place is its own (S-8),
    and its drop would delete the log. A list, and two for each folder of the path."""
    if wal.list_folder(paths.table_chain())[1]:
        raise WalStoreMismatch(
            f"{wal.uri} is the place of a table; give the log a place beside it or elsewhere"
        )
    table = enclosing_table(wal.uri, open_at)
    if table is not None:  # guard: S-8 test_missing_log
        raise WalStoreMismatch(
            f"{wal.uri} is inside the table {table}, whose drop would delete the log; give the log"
            " a place beside that table or elsewhere"
        )


def admits(wal: Store, table: str) -> bool:
    """True for a WAL store that holds a folder of that table, or nothing, as a replaced disk does
    (S-2). A list, and a get for each folder of a log."""
    folders, objects = wal.list_folder("")
    if any(_is_owned(wal, folder, table) for folder in folders):
        return True
    ours = (f"{paths.CLOCK}/", f"{paths.PROBE}/")
    return not objects and all(
        found.path.startswith(ours)
        for folder in folders
        if folder != _DISKS_OWN
        for found in wal.list(folder)
    )


def _is_owned(wal: Store, folder: str, table: str) -> bool:
    if not paths.is_log_folder(folder):
        return False
    owner = _read_owner(wal, f"{folder}/{paths.LOG_OWNER}")
    return owner is not None and same_place(owner.table, table)


def _read_owner(wal: Store, path: str) -> LogOwner | None:
    try:
        data = wal.get(path).data
    except (ObjectMissing, RootMissing):
        return None
    return codec.loads(data, LogOwner, f"{wal.uri}/{path}")


class WalStores:
    """The places of one table's logs, each opened once. Safe to share between threads."""

    def __init__(
        self,
        table: Callable[[], Store],
        env: Env,
        open_wal: Callable[[str], Store],
        open_folder: Callable[[str], Store],
        fence_ttl: Callable[[], float] = lambda: FENCE_TTL,
        consent: Consent | None = None,
    ) -> None:
        """`table` returns the table's own store; `open_wal` opens a WAL store by URI, and
        `open_folder` a folder in one, which it never creates.

        `fence_ttl` returns the table's setting, the upper bound for its writers (G-7b). `consent`
        says which stores may hold the table's logs without naming the table.
        """
        self._consent = consent
        self._table = table
        self.env = env
        self._open_wal = open_wal
        self._open_folder = open_folder
        self._fence_ttl = fence_ttl
        self._lock = env.threads.lock()
        self._stores: dict[str, Store] = {}
        self._folders: dict[str, Store] = {}
        """Folders that were seen to name the table, by the URI that is recorded."""
        self._probing = env.threads.lock()
        self._proved: set[str] = set()
        """WAL stores that this handle has found to keep put-if-absent."""
        self._records: dict[tuple[UUID, int], LogPlace] = {}
        self.alias: str | None = None
        """Another URI at which the recorded store may be reachable (a second mount point)."""
        self.table_id: UUID | None = None
        """The table whose records these are, if it is known: no other one at its place (C-16)."""

    @property
    def store(self) -> Store:
        """The table's own store."""
        return self._table()

    @property
    def consent(self) -> Consent:
        """The places that the caller allowed."""
        return self._consent or Consent(self.store.uri)

    def at(self, uri: str | None) -> Store:
        """The store at that URI; the table's own for None. No request."""
        if uri is None:
            return self.store
        with self._lock:
            if uri not in self._stores:
                self._stores[uri] = self._open_wal(uri)
            return self._stores[uri]

    def table_site(self, shard: UUID) -> ShardSite:
        """The shard with the table's own store only, for callers that never read the log (S-5)."""
        return self._site(shard, BESIDE_THE_DATA, self.store)

    def place(self, shard: UUID, manifest: ShardManifest | None, floors: FloorValues) -> LogPlace:
        """Where the log is by that manifest, reachable or not; `floors` were read after it.

        One get for a place that this handle has not seen. Raises `WalStoreMismatch` when another
        program dropped the field and the log is not beside the data (X-1).
        """
        number = 0 if manifest is None else manifest.log_place
        place = self._record(shard, number or floors.place)
        # guard: X-1 test_wal_store
        if number == 0 and place.uri is not None:
            raise WalStoreMismatch(
                f"shard {shard} of {self.store.uri}: its log is in {place.root}, but the latest"
                " manifest does not say so: a program that does not know WAL stores claimed the"
                " shard. Stop that program. table.move_wal(uri, accept_loss=True), or weir wal move"
                " --accept-loss, opens the shard again and gives up what is in the log only"
            )
        return place

    def marked(self, shard: UUID, floors: FloorValues) -> LogPlace:
        """Where the log was put, whatever the manifest says of it. Costs what `place` costs."""
        return self._record(shard, floors.place)

    def site_at(self, shard: UUID, place: LogPlace) -> ShardSite:
        """The shard with its log at that place; no request for a place seen before.

        Raises `WalStoreMismatch` when its folder is not there, or names another table (S-1, S-8).
        """
        return self._site(shard, place, self.folder(place))

    def folder(self, place: LogPlace) -> Store:
        """The store of a place, whose folder is checked the first time: one get."""
        if place.uri is None or place.root is None:
            return self.store
        with self._lock:
            found = self._folders.get(place.root)
        if found is None:
            found = self._checked(place.uri, place.root)
            with self._lock:
                self._folders[place.root] = found
        return found

    def is_under_alias(self, place: LogPlace) -> bool:
        """True for a place that this handle reaches under the alias. Costs what `folder` costs."""
        if self.alias is None or place.root is None:
            return False
        try:
            return self.folder(place).uri == f"{self.alias}/{place.folder}"
        except (WalStoreMismatch, StoreError):
            return False  # whoever goes there is told why not

    def forget(self) -> None:
        """Check every folder again before it is used: one was found to be gone."""
        with self._lock:
            self._folders.clear()
            self._proved.clear()  # another disk may be in its place

    def place_for(self, uri: str, *, is_named: bool = False) -> LogPlace:
        """Where logs of the table that go to that WAL store begin: in the recorded folder, or in a
        new one, which is then in the table's record (S-8).

        `is_named`: a call of the user names the store. Otherwise the place is the one that the
        table's record names by now, wherever that is, and a new folder is begun only in a store
        that knows the table, or is empty (G-13): `StoreDenied`. A get and a list for a folder that
        is there; for a new one a list for each folder of the path, a probe of the store and two
        puts more (`StoreUnsuitable`, before anything is written).
        """
        consent, records = self.consent, TableRecords(self.store, self.table_id)
        record, is_named = records.load(), is_named or uri == self.alias
        if record.wal_uri != uri and not is_named:  # guard: S-8 test_move_wal
            if record.wal_uri is None:
                return BESIDE_THE_DATA
            uri = record.wal_uri
        if record.wal_uri == uri and self._is_there(uri, record.wal_folder):
            return LogPlace(uri=uri, folder=record.wal_folder)
        wal, is_allowed = self.at(uri), is_named or consent.covers(uri)
        if not is_allowed:
            is_allowed = consent.may_ask(uri) and admits(wal, consent.root)
        if not is_allowed:  # guard: G-13 test_inside_the_table
            raise consent.refused(uri, "as a new place of its log, which is not empty")
        require_no_table(wal, self._open_wal)
        self._prove(uri)
        made = paths.log_folder(record.table_id, self.env.new_id())
        make_folder(wal, made, consent.root)

        def change(latest: TableRecord) -> TableRecord:
            is_taken = (latest.wal_uri, latest.wal_folder) != (record.wal_uri, record.wal_folder)
            if is_taken and (latest.wal_uri == uri or not is_named):
                return latest  # another process was faster
            return replace(latest, wal_uri=uri, wal_folder=made)

        found = records.update(change, self.env)
        if found.wal_folder != made:
            wal.delete([f"{made}/{paths.LOG_OWNER}"])
        return LogPlace(uri=found.wal_uri, folder=found.wal_folder)

    def _prove(self, uri: str) -> None:
        """`StoreUnsuitable` for a store without put-if-absent; once for all shards that go there.

        However the store was named: its entries would replace each other (F-1).
        """
        with self._probing:
            if uri not in self._proved:
                prove([self.at(uri)], self.env)
                self._proved.add(uri)

    def _is_there(self, uri: str, folder: str | None) -> bool:
        if folder is None:
            return False
        try:
            self.folder(LogPlace(uri=uri, folder=folder))
        except LogFolderMissing:
            return False
        return True

    def _checked(self, uri: str, root: str) -> Store:
        wal, owner = self._found(uri, root)
        if owner is None:
            raise LogFolderMissing(
                f"{root} is recorded as the place of a log of {self.store.uri} but is not there:"
                " the disk is not mounted, or was wiped or replaced, or the bucket was deleted."
                " Mount the right one. Without it, reads with freshness='flushed' work, and a"
                " writer opens if every row of the log was flushed"
            )
        # guard: G-13 test_inside_the_table
        if not same_place(owner.table, self.consent.root) and not self.consent.covers(wal.uri):
            raise WalStoreMismatch(
                f"{wal.uri} holds logs of the table {owner.table}, but this table is"
                f" {self.consent.root}. Its records point to another table's log, so weir reads,"
                " writes and deletes nothing there. If both are one table under two paths, open it"
                f" under the first, or allow the store with the storage option {ALLOW}={wal.uri}"
                " (--option on the command line)"
            )
        return wal

    def _found(self, uri: str, root: str) -> tuple[Store, LogOwner | None]:
        """The folder at that URI or under the alias of its store, and what it says of itself."""
        if self.alias is not None and self.alias != uri:
            # Its name is unique: a folder of that name under the other URI is the same one.
            other = self._open_folder(self.alias + root[len(uri) :])
            owner = _read_owner(other, paths.LOG_OWNER)
            if owner is not None:
                return other, owner
        if not self.consent.may_ask(root):
            raise self.consent.refused(root, "as the place of its log")
        wal = self._open_folder(root)
        return wal, _read_owner(wal, paths.LOG_OWNER)

    def _record(self, shard: UUID, number: int) -> LogPlace:
        with self._lock:
            found = self._records.get((shard, number))
        if found is None:
            found = load_place(self.store, shard, number)
            with self._lock:
                self._records[shard, number] = found
        return found

    def _site(self, shard: UUID, place: LogPlace, wal: Store) -> ShardSite:
        return ShardSite(
            self.store,
            wal,
            shard,
            self.env,
            place.seq,
            place.after,
            self._fence_ttl(),  # guard: G-7b
        )

    def segment(self, shard: UUID, number: int, position: int) -> LogSegment:
        """The stretch of the log that contains the position, before or after moves (S-9), by the
        number of its newest place.

        No request unless the log was moved after that position; then a get for each place not seen
        before. Raises `WalStoreMismatch`.
        """
        place, last = self._record(shard, number), None
        while position <= place.after and place.seq:  # guard: K-7 always simulator:moves
            last, place = place.after, self._record(shard, place.follows)
        return LogSegment(self.site_at(shard, place), place.after, last)

    def former(self, shard: UUID, current: LogPlace) -> tuple[list[ShardSite], list[str]]:
        """Folders that held the log earlier and are still there; for collection.

        Leaves out the table's own store and the current place. Folders that could not be read are
        described in the notes (S-5). One list, a get for each record.
        """
        places = {place.root: place for place in all_places(self.store, shard)}
        sites, notes = [], []
        for root, place in places.items():
            if root is None or root == current.root:
                continue
            try:
                sites.append(self.site_at(shard, place))
            except (StoreError, WalStoreMismatch) as error:
                notes.append(f"shard {shard}: entries of its log in {root} were kept: {error}")
        return sites, notes
