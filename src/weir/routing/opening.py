"""`open`: how an open table is reached, from its place to its `Core`."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput
from weir.lake.api import Lake
from weir.lake.pylance_lake import PylanceLake
from weir.lake.supported import require_supported
from weir.records.enclosing import enclosed_table, enclosing_table, is_within
from weir.records.lineage import require_ready
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.routing.sharing import require_shared
from weir.store.api import Store
from weir.store.consent import Consent
from weir.store.open import lance_options, normalize, open_store

Options = Mapping[str, str] | None


def open(
    uri: str,
    *,
    storage_options: Options = None,
    wal_uri: str | None = None,
    env: Env = SYSTEM,
    to_drop: bool = False,
    maker: UUID | None = None,
) -> Core:
    """See `weir.open`. Only `to_drop` opens a table whose drop was begun, or one in the making that
    has not the id `maker`."""
    store = open_store(uri, storage_options, env=env)
    require_ready(store)
    record = TableRecords(store).load(to_drop=to_drop, maker=maker)
    asked = None if wal_uri is None else normalize(wal_uri)
    is_here = asked == normalize(uri)
    place = Place(uri, None if is_here else asked or record.wal_uri, storage_options, env, store)
    place.asked_wal = asked
    return place.core(record, record.seq)


def require_own_place(uri: str, options: Options, env: Env) -> None:
    """`InvalidInput` for a new table inside another one, which would collect it, or around one."""
    table = enclosing_table(uri, lambda above: open_store(above, options, env=env))
    if table is not None:  # guard: S-8 test_making_inside
        raise InvalidInput(
            f"{uri} is inside the table {table}, which deletes what it does not know in its"
            " folders; choose a place outside it. Nothing was written"
        )
    inner = enclosed_table(open_store(uri, options, env=env))
    if inner is not None:  # guard: S-8 test_making_inside
        raise InvalidInput(
            f"{uri} would be a table whose folders hold another one or its log, {inner}, and it"
            " deletes what it does not know there; choose another place. Nothing was written"
        )


class Place:
    """A URI with everything needed to reach it."""

    def __init__(
        self, uri: str, wal_uri: str | None, options: Options, env: Env, store: Store | None = None
    ) -> None:
        require_supported()  # guard: X-8 test_supported
        self.uri = normalize(uri)
        self.wal_uri = None if wal_uri is None else normalize(wal_uri)
        self.asked_wal = self.wal_uri
        if self.uri.startswith("memory://"):
            raise InvalidInput(
                f"{self.uri}: Lance cannot open a table in memory://, which works as wal_uri only;"
                " use a temporary folder"
            )
        if self.wal_uri is not None and is_within(self.wal_uri, self.uri):
            raise InvalidInput(
                f"wal_uri {self.wal_uri} is the table's own URI, or inside it; leave it out to keep"
                " the log beside the data"
            )
        self.options = dict(options or {})
        self.env = env
        self.store = store or open_store(uri, options, env=env)
        self.wal = self.store if wal_uri is None else open_store(wal_uri, options, env=env)
        self.lance = lance_options(uri, options)

    def lake(self) -> Lake:
        """The lake at this place."""
        found: Lake | None = None if self.env.places is None else self.env.places.lake(self.uri)
        if found is not None:
            return found
        return self.pylance()

    def pylance(self) -> Lake:
        """Lance at this place, which reads other places only if allowed (G-13)."""
        consent = Consent.of(self.uri, self.options)

        def agree(place: str) -> None:
            require_shared(place, self.store, consent, self.options, self.env)

        return PylanceLake(self.uri, self.lance, self.store, env=self.env, agree=agree)

    def core(self, record: TableRecord, number: int = 0) -> Core:
        """The table with that record; `number` is the record's, 0 while it is not written yet."""
        core = Core(
            uri=self.uri,
            storage_options=self.options,
            store=self.store,
            wal=self.wal,
            lake=self.lake(),
            env=self.env,
            record=record,
            known_number=number,
            wal_uri=self.asked_wal,
        )
        if number:
            core.lake.ask_before_changes(core.record_number)
        return core
