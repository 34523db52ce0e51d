"""Which store holds a shard's log: beside the data, or a second one known by its id.

A chain per shard says where the log is (`records/wal_store.py`). The store itself holds its
id, so a wrong or empty store is recognised.

Keeps
  S-1  identity is checked, not presence: the id in the store must be the id in the record
  S-3  a move is prepared, proved and confirmed: the preparer checks for a newer claim after its
       write, a claimant checks for a prepared move after its claim, so one of the two sees the
       other; exactly one of a confirmation and a refusal gets the next number
  S-8  the store names the table whose log it holds, and only that table's handles go there
  S-5  reading the log without its store fails at open, not with a 404 later
A mark among the floors carries the number of the record, so a reader that lists the floors anyway
learns of a move at no cost. The mark is raised before the first entry in the new store counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from weir.config import FENCE_TTL
from weir.env import Env
from weir.errors import (
    CommitConflict,
    InvalidInput,
    StoreError,
    WalStoreMismatch,
)
from weir.log.floors import Floors, FloorValues
from weir.log.site import LogSegment, ShardSite
from weir.log.stamp import (
    Stamp,
    anothers_store,
    foreign_store,
    lost_store,
    read_stamp,
    read_store_id,
)
from weir.records.wal_store import WalStoreRecord, all_records, append_record, latest_record
from weir.store.api import ObjectExists, Store
from weir.store.consent import Consent, same_place
from weir.types import Epoch

CONFIRM_ATTEMPTS = 8


class WalMoved(CommitConflict):
    """The log was moved to another store while the shard was being opened; open it again."""


class WalStores:
    """The WAL stores of one table, each opened once. Safe to share between threads."""

    def __init__(
        self,
        table: Callable[[], Store],
        env: Env,
        open_wal: Callable[[str], Store],
        fence_ttl: Callable[[], float] = lambda: FENCE_TTL,
        consent: Consent | None = None,
    ) -> None:
        """`table` returns the table's own store; `open_wal` opens a store by URI, with its options.

        `fence_ttl` returns the table's setting, the upper bound for its writers (G-7b). `consent`
        says which stores may hold the table's logs without naming the table.
        """
        self._consent = consent
        self._table = table
        self.env = env
        self._open_wal = open_wal
        self._fence_ttl = fence_ttl
        self._lock = env.threads.lock()
        self._opened: dict[str, Store] = {}
        self._places: dict[UUID, tuple[WalStoreRecord, Store | None]] = {}
        self._histories: dict[UUID, tuple[int, list[WalStoreRecord]]] = {}
        """By shard: the number of its latest record, and every place its log was in."""
        self.alias: str | None = None
        """Another URI at which the recorded store may be reachable (a second mount point)."""

    @property
    def store(self) -> Store:
        """The table's own store."""
        return self._table()

    def at(self, uri: str | None) -> Store:
        """The store at that URI; the table's own for None. No request."""
        if uri is None:
            return self.store
        with self._lock:
            if uri not in self._opened:
                self._opened[uri] = self._open_wal(uri)
            return self._opened[uri]

    def table_site(self, shard: UUID) -> ShardSite:
        """The shard with the table's own store only, for callers that never read the log (S-5)."""
        return self._site(shard, WalStoreRecord(), None)

    def site(self, shard: UUID, floors: FloorValues | None = None) -> ShardSite:
        """The shard with the store of its log, whose identity is checked on first use.

        With freshly read `floors` it costs no request unless the log was moved. Raises
        `WalStoreMismatch`.
        """
        known = self._places.get(shard)
        if floors is not None and (known is None or known[0].seq < floors.store):
            if floors.store == 0:
                return self._remember(shard, WalStoreRecord(), None)
        elif known is not None:
            return self._site(shard, *known)
        return self.resolve(shard)

    def recorded(self, shard: UUID) -> WalStoreRecord:
        """Where the records say the log is, reachable or not; cached by `site`."""
        known = self._places.get(shard)
        return known[0] if known else latest_record(self.store, shard)

    def resolve(self, shard: UUID, record: WalStoreRecord | None = None) -> ShardSite:
        """Like `site`, but read from the chain: one list, and two gets when there is a record."""
        record = record or latest_record(self.store, shard)
        return self._remember(shard, record, self._checked(shard, record))

    def _checked(self, shard: UUID, record: WalStoreRecord) -> Store | None:
        """The store of a record, its identity checked (S-1); None if the log is beside the data."""
        if record.uri is None or record.store_id is None:
            return None
        return self.store_with_id(shard, record.uri, record.store_id)

    def store_with_id(self, shard: UUID, uri: str, store_id: str) -> Store:
        """The store at that URI, or at this handle's alias of it, if it bears the id (S-1)."""
        wal = self.at(uri)
        if self.alias is not None and self.alias != uri:
            other = self.at(self.alias)
            wal = other if read_store_id(other, shard) == store_id else wal
        if wal.uri != self.alias and not self.consent.may_ask(wal.uri):
            raise self.consent.refused(wal.uri, "as the place of its log")
        found = read_stamp(wal, shard)
        if found is None:
            raise lost_store(wal, shard, store_id)
        if found.store_id != store_id:
            raise foreign_store(wal, shard, found.store_id)
        self.require_own(wal, shard, found)
        return wal

    @property
    def consent(self) -> Consent:
        """The places that the caller allowed."""
        return self._consent or Consent(self.store.uri)

    def require_own(self, wal: Store, shard: UUID, found: Stamp) -> None:
        """`WalStoreMismatch` unless the store itself names this table, or was allowed (S-8, G-13).

        A forged record of this table can name another table's store, and even its id.
        """
        consent = self.consent
        if not same_place(found.table, consent.root) and not consent.covers(wal.uri):
            raise anothers_store(wal, shard, found.table, consent)

    def _remember(self, shard: UUID, record: WalStoreRecord, wal: Store | None) -> ShardSite:
        with self._lock:
            self._places[shard] = (record, wal)
        return self._site(shard, record, wal)

    def _site(self, shard: UUID, record: WalStoreRecord, wal: Store | None) -> ShardSite:
        return ShardSite(
            self.store,
            wal or self.store,
            shard,
            self.env,
            record.store_id,
            record.after,
            record.empty_after,
            self._fence_ttl(),
        )

    def segment(self, shard: UUID, position: int) -> LogSegment:
        """The stretch of the log that contains the position, before or after moves (S-9).

        No request unless the log was moved after that position. Then one list and a get for each
        record the shard ever had, once, and a get for the id. Raises `WalStoreMismatch`.
        """
        current = self.recorded(shard)
        if position > current.after:
            # Only this branch needs the store that the log is in now, which may be unreachable.
            known = self._places.get(shard)
            site = self._site(shard, *known) if known else self.resolve(shard, current)
            return LogSegment(site, site.wal_after)
        places = self._history(shard)
        index = max(i for i, record in enumerate(places) if record.after < max(position, 1))
        record = places[index]
        last = None
        if index + 1 < len(places):
            last, empty_after = places[index + 1].after, places[index + 1].empty_after
            if empty_after is not None and position > empty_after:
                # In no store. The site says so itself, for callers that get nothing but the site.
                nowhere = replace(
                    self.table_site(shard), wal_after=last, wal_empty_after=empty_after
                )
                return nowhere.segment(position)
            last = last if empty_after is None else empty_after
        return LogSegment(
            self._site(shard, record, self._checked(shard, record)), record.after, last
        )

    def _history(self, shard: UUID) -> list[WalStoreRecord]:
        """Every place of the log, oldest first and the current one last: a record for each."""
        known, _ = self._places.get(shard, (WalStoreRecord(), None))
        seq, places = self._histories.get(shard, (-1, []))
        if seq >= known.seq and places:
            return places
        places = [WalStoreRecord()]
        for record in all_records(self.store, shard):
            seq = record.seq
            # A prepared move has not happened, and a refused one leaves the log where it was.
            # A store that was given up and found again is another place: it holds nothing between.
            last = places[-1]
            if not record.prepared and (record.store_id, record.after) != (
                last.store_id,
                last.after,
            ):
                places.append(record)
        with self._lock:
            self._histories[shard] = (seq, places)
        return places

    def former(self, shard: UUID) -> tuple[list[ShardSite], list[str]]:
        """Stores that held the log earlier and still bear the id recorded then; for collection.

        Leaves out the table's own store, the one the log is in now, and any that is gone. Stores
        that could not be read are described in the notes (S-6). One list, a get for each record.
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
                if not self.consent.may_ask(wal.uri):
                    raise self.consent.refused(wal.uri, "as an earlier place of its log")
                there = read_stamp(wal, shard)
                if there is not None and there.store_id == store_id:
                    self.require_own(wal, shard, there)
            except (StoreError, InvalidInput, WalStoreMismatch) as error:
                notes.append(
                    f"shard {shard}: entries of its log in {record.uri} were kept (S-6): {error}"
                )
                continue
            if there is not None and there.store_id == store_id:
                sites.append(self._site(shard, record, wal))
        return sites, notes

    def forget(self, shard: UUID) -> None:
        """Make the next `site` read the chain."""
        with self._lock:
            self._places.pop(shard, None)
            self._histories.pop(shard, None)


def confirm_location(site: ShardSite, epoch: Epoch, floors: FloorValues) -> None:
    """After a claim, make sure that the log is where `site` says and that nobody moves it (S-3).

    A move that an older epoch prepared but did not confirm is refused for good. Raises `WalMoved`
    when a move was confirmed. One list.
    """
    for _ in range(CONFIRM_ATTEMPTS):
        record = latest_record(site.store, site.shard)
        # The same store counts as moved too, if it was given up as lost and came back before the
        # record that skips the positions it might have held (S-2).
        if (record.store_id, record.after) != (site.wal_id, site.wal_after):
            raise WalMoved(
                f"{site}: its log was moved to {record.uri or site.store.uri}; open the shard again"
            )
        if not record.prepared or record.epoch >= epoch:
            if record.seq > floors.store:
                Floors(site).raise_to("store", record.seq)
            return
        try:
            append_record(site.store, site.shard, record.confirmed(epoch), site.env.new_id())
        except ObjectExists:
            continue
    raise CommitConflict(
        f"{site}: the record of its WAL store changed {CONFIRM_ATTEMPTS} times while the shard was"
        " being opened; open it again"
    )
