"""Which store holds a shard's log: beside the data, or a second one known by its id.

A chain per shard says where the log is (`records/wal_places.py`). The store itself holds the id it
is known by, so that a wrong or empty one is recognised.

Keeps
  S-1  identity is checked, not presence: the id in the store must be the id in the record
  S-3  a move is prepared, proved and confirmed: the preparer looks for a newer claim after it
       wrote, a claimant looks for a prepared move after it claimed, so one of the two sees the
       other; of a confirmation and a refusal exactly one gets the next number
  S-5  who reads the log without its store is told so when it asks, not by a 404 later
A marker among the floors carries the number of the record, so that a reader who lists the floors
anyway learns of a move for free; it is raised before the first entry in the new store counts.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from weir.config import FENCE_TTL
from weir.env import Env
from weir.errors import (
    CommitConflict,
    InvalidInput,
    StoreError,
    WalStoreMismatch,
)
from weir.format import paths
from weir.log.floors import Floors, FloorValues
from weir.log.site import ShardSite, Stretch
from weir.records import codec
from weir.records.wal_places import WalRecord, all_records, append_record, latest_record
from weir.store.api import ObjectExists, ObjectMissing, Store
from weir.types import Epoch

SETTLE_ATTEMPTS = 8


class WalMoved(CommitConflict):
    """The log was moved to another store while the shard was being opened; open it again."""


def read_store_id(wal: Store, shard: UUID) -> str | None:
    """The id the WAL store holds for that shard, or None. One get."""
    path = paths.store_id_path(shard)
    try:
        return id_in(wal.get(path).data, path)
    except ObjectMissing:
        return None


def id_in(data: bytes | None, path: str) -> str | None:
    """The id in the object at `path`; None when there is none."""
    return None if data is None else str(codec.loads(data, path).get("store_id"))


def stamped_by(wal: Store, shard: UUID) -> object:
    """The URI of the table that gave the store its id. One get."""
    path = paths.store_id_path(shard)
    (data,) = wal.get_many([path])
    return None if data is None else codec.loads(data, path).get("table")


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


class WalStores:
    """The WAL stores of one table, each opened once. Safe to share between threads."""

    def __init__(
        self,
        table: Callable[[], Store],
        env: Env,
        open_wal: Callable[[str], Store],
        fence_ttl: Callable[[], float] = lambda: FENCE_TTL,
    ) -> None:
        """`table` gives the table's own store; `open_wal` opens one by URI, with its options.

        `fence_ttl` gives the table's own setting, the bound of every writer's (G-7b).
        """
        self._table = table
        self.env = env
        self._open_wal = open_wal
        self._fence_ttl = fence_ttl
        self._lock = env.threads.lock()
        self._opened: dict[str, Store] = {}
        self._places: dict[UUID, tuple[WalRecord, Store | None]] = {}
        self._histories: dict[UUID, tuple[int, list[WalRecord]]] = {}
        """By shard the number of its latest record and every place its log was in."""
        self.alias: str | None = None
        """A URI under which the recorded store may be reached as well (another mount point)."""

    @property
    def store(self) -> Store:
        """The table's own store."""
        return self._table()

    def at(self, uri: str | None) -> Store:
        """The store at that URI; the table's own for None. Contacts nothing."""
        if uri is None:
            return self.store
        with self._lock:
            if uri not in self._opened:
                self._opened[uri] = self._open_wal(uri)
            return self._opened[uri]

    def beside(self, shard: UUID) -> ShardSite:
        """The shard with nothing but the table's own store: for all that never reads the log
        (S-5)."""
        return self._site(shard, WalRecord(), None)

    def site(self, shard: UUID, floors: FloorValues | None = None) -> ShardSite:
        """The shard with the store of its log, its identity checked when it is first met.

        With `floors` just read it costs nothing unless the log was moved. Raises
        `WalStoreMismatch`.
        """
        known = self._places.get(shard)
        if floors is not None and (known is None or known[0].seq < floors.store):
            if floors.store == 0:
                return self._remember(shard, WalRecord(), None)
        elif known is not None:
            return self._site(shard, *known)
        return self.resolve(shard)

    def recorded(self, shard: UUID) -> WalRecord:
        """Where the log is by the records, reachable or not; remembered as `site` remembers."""
        known = self._places.get(shard)
        return known[0] if known else latest_record(self.store, shard)

    def resolve(self, shard: UUID, record: WalRecord | None = None) -> ShardSite:
        """Like `site`, from the chain itself: one list, and two gets when there is a record."""
        record = record or latest_record(self.store, shard)
        return self._remember(shard, record, self._checked(shard, record))

    def _checked(self, shard: UUID, record: WalRecord) -> Store | None:
        """The store of a record, its identity checked (S-1); None: beside the data."""
        if record.uri is None or record.store_id is None:
            return None
        return self.bearing(shard, record.uri, record.store_id)

    def bearing(self, shard: UUID, uri: str, store_id: str) -> Store:
        """The store at that URI, or where this handle reaches it, if it bears the id (S-1)."""
        wal = self.at(uri)
        if self.alias is not None and self.alias != uri:
            other = self.at(self.alias)
            wal = other if read_store_id(other, shard) == store_id else wal
        require_store_id(wal, shard, store_id)
        return wal

    def _remember(self, shard: UUID, record: WalRecord, wal: Store | None) -> ShardSite:
        with self._lock:
            self._places[shard] = (record, wal)
        return self._site(shard, record, wal)

    def _site(self, shard: UUID, record: WalRecord, wal: Store | None) -> ShardSite:
        return ShardSite(
            self.store,
            wal or self.store,
            shard,
            self.env,
            record.store_id,
            record.after,
            self._fence_ttl(),
        )

    def stretch(self, shard: UUID, position: int) -> Stretch:
        """The part of the log that the position lies in, before moves or after them (S-9).

        Nothing is asked unless the log was moved after that position; then one list and a get for
        each record the shard ever had, once, and one for the id. `WalStoreMismatch`.
        """
        current = self.recorded(shard)
        if position > current.after:
            # Only here is the store asked for that the log is in now: it may be out of reach.
            known = self._places.get(shard)
            site = self._site(shard, *known) if known else self.resolve(shard, current)
            return Stretch(site, site.wal_after)
        places = self._history(shard)
        index = max(i for i, record in enumerate(places) if record.after < max(position, 1))
        record = places[index]
        last = places[index + 1].after if index + 1 < len(places) else None
        return Stretch(self._site(shard, record, self._checked(shard, record)), record.after, last)

    def _history(self, shard: UUID) -> list[WalRecord]:
        """Where the log was and is, oldest first: a record for each place, in its time."""
        known, _ = self._places.get(shard, (WalRecord(), None))
        seq, places = self._histories.get(shard, (-1, []))
        if seq >= known.seq and places:
            return places
        places = [WalRecord()]
        for record in all_records(self.store, shard):
            seq = record.seq
            # A prepared move has not happened, and a refused one leaves the log where it was.
            if not record.prepared and record.store_id != places[-1].store_id:
                places.append(record)
        with self._lock:
            self._histories[shard] = (seq, places)
        return places

    def former(self, shard: UUID) -> tuple[list[ShardSite], list[str]]:
        """Stores that held the log before and still bear the id it was known by; for collection.

        The table's own is not among them, nor the one the log is in now, nor one that is gone. What
        could not be asked is told in words (S-6). One list, a get for each record.
        """
        self.forget(shard)
        places = self._history(shard)
        known = {r.store_id: r for r in places if r.store_id is not None}
        known.pop(places[-1].store_id or "", None)
        sites, notes = [], []
        for store_id, record in known.items():
            assert record.uri is not None, "S-1: an id belongs to a URI"
            try:
                wal = self.at(record.uri)
                there = read_store_id(wal, shard)
            except (StoreError, InvalidInput) as error:
                notes.append(
                    f"shard {shard}: what its log left in {record.uri} stays (S-6): {error}"
                )
                continue
            if there == store_id:
                sites.append(self._site(shard, record, wal))
        return sites, notes

    def forget(self, shard: UUID) -> None:
        """Let the next `site` look at the chain."""
        with self._lock:
            self._places.pop(shard, None)
            self._histories.pop(shard, None)


def check_identity(site: ShardSite) -> None:
    """`WalStoreMismatch` unless the site's log is where it was met: a disk may be unmounted since.

    What is not found in a store of its own is not there only if the store is (S-7). One get, and
    only for such a log.
    """
    if site.wal_id is not None:
        require_store_id(site.wal, site.shard, site.wal_id)


def lost_store(wal: Store, shard: UUID, store_id: str | None) -> WalStoreMismatch:
    """The error for a store that should have the log and is empty."""
    return WalStoreMismatch(
        f"{wal.uri} is recorded as the WAL store of shard {shard} (id {store_id}) but does"
        " not hold that id: the disk was wiped, or it is the disk of another machine. Reads with"
        " freshness='flushed' need no log; a writer can be opened if no row was left in it (S-2)"
    )


def settle(site: ShardSite, epoch: Epoch, floors: FloorValues) -> None:
    """After a claim: nobody moves the log any more, and it is where `site` says (S-3).

    A move that an older epoch prepared and did not confirm is refused for good. Raises `WalMoved`
    when one was confirmed. One list.
    """
    for _ in range(SETTLE_ATTEMPTS):
        record = latest_record(site.store, site.shard)
        if record.store_id != site.wal_id:
            raise WalMoved(f"{site}: its log was moved to {record.uri or 'the table'}; open again")
        if not record.prepared or record.epoch >= epoch:
            if record.seq > floors.store:
                Floors(site).raise_to("store", record.seq)
            return
        try:
            append_record(site.store, site.shard, record.confirmed(epoch), site.env.new_id())
        except ObjectExists:
            continue
    raise CommitConflict(f"{site}: its log is moved as fast as it is looked at; open again")
