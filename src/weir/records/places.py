"""Where a shard's log is and was: immutable records, `_weir/shards/{shard}/places`.

A record alone changes nothing. The shard's manifest names the one that counts, by its number, so a
move and a claim race for the same manifest version and one of them wins (S-3). A record names the
place it follows: those two numbers are the whole history of a log.

The number that the manifest names only rises: a mover that slept between its record and its
manifest starts over when the log was moved meanwhile.

Nothing trims these records, for two reasons. They are all that leads collection and `drop` to
entries which a move left in other stores, and a store that is away is not an empty one (S-1). And
readers find old entries from record to record (S-9). There is one for each move of a shard's log.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from msgspec.structs import replace

from weir.env import Env
from weir.errors import CommitConflict, MissingEntry
from weir.format import paths
from weir.records.chain import RecordChain
from weir.records.codec import COPY, Record
from weir.store.api import ObjectExists, Store
from weir.store.open import require_recorded


class LogPlace(Record, frozen=True):
    """One place of a shard's log."""

    KIND: ClassVar[str] = "log place"
    uri: str | None = None
    """The WAL store; None: beside the data."""
    folder: str | None = None
    """The folder in that store, which belongs to this table and to nobody else, ever."""
    after: int = 0
    """Entries at or below this position are in the places before."""
    follows: int = 0
    """The number of the place before; 0: beside the data, from the first entry on."""
    nonce: UUID | None = None
    """Distinguishes the records of two writers (F-9)."""

    def __post_init__(self) -> None:
        """Refuse a place that cannot be."""
        if (self.uri is None) != (self.folder is None):
            raise ValueError("uri and folder must both be strings or both be missing")
        require_recorded(self.uri)
        if self.folder is not None and not paths.is_log_folder(self.folder):
            raise ValueError(f"{self.folder!r} is not the name of a log's folder")

    @property
    def root(self) -> str | None:
        """The URI of the folder; None: beside the data."""
        return None if self.uri is None else f"{self.uri}/{self.folder}"


BESIDE_THE_DATA: Final = LogPlace()
"""Where every log begins that nobody put elsewhere."""


def _chain(store: Store, shard: UUID) -> RecordChain[LogPlace]:
    return RecordChain(store, paths.places_chain(shard), LogPlace)


def load_place(store: Store, shard: UUID, number: int) -> LogPlace:
    """The place with that number, which a manifest names. One get, none for number 0."""
    if number == 0:
        return BESIDE_THE_DATA
    found = _chain(store, shard).load(number)
    if found is None:
        raise MissingEntry(
            f"{store.uri}/{paths.chain_path(paths.places_chain(shard), number)} does not exist,"
            f" although the manifest of shard {shard} says that its log is there. {COPY}"
        )
    return found


def all_places(store: Store, shard: UUID) -> list[LogPlace]:
    """Every record of the shard, ascending; some never counted. One list, one get each."""
    return _chain(store, shard).all()


def append_place(store: Store, shard: UUID, place: LogPlace, env: Env) -> LogPlace:
    """Write the record under the next free number. One list, one put. It counts from the manifest
    on that names it."""
    chain = _chain(store, shard)
    for _ in env.attempts():
        try:
            return chain.append(replace(place, nonce=env.new_id(), seq=chain.last_number()))
        except ObjectExists:
            continue
    raise CommitConflict(f"shard {shard} of {store.uri}: others move its log at once; try again")
