"""Whose files a base may name: its own, and those of tables that hold a pin for it.

Anyone with write access below the table can write a version of the base that names files anywhere.
So the table that holds the files decides: a clone's pin there bears the clone's URI, and write
access to the clone alone is not enough to put it there (G-13).
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.env import Env
from weir.errors import CorruptEntry, InvalidInput
from weir.records.holds import Holds
from weir.records.lineage import read_lineage
from weir.store.api import Store
from weir.store.consent import Consent, same_place
from weir.store.open import normalize, open_store


def require_shared(
    place: str, store: Store, consent: Consent, options: Mapping[str, str], env: Env
) -> None:
    """`StoreDenied` unless the table at `place` confirms that it shares files with `store`'s.

    A list and a get for our lineage, a list and two gets for each pin there.
    """
    try:
        there = normalize(place)
    except InvalidInput as error:
        raise CorruptEntry(
            f"{consent.root}: its manifest names {place!r} as a place it shares files with, which"
            f" is not a valid URI ({error}). Restore an older version of the base with Lance"
        ) from None
    if consent.covers(there):
        return
    lineage = read_lineage(store)
    pins = [] if lineage is None else [p for p in lineage.pins if same_place(p.uri, there)]
    if pins and consent.may_ask(there):
        records = Holds(open_store(there, options, env=env))
        for pin in pins:
            held = records.load(pin.checkpoint)
            if held is not None and same_place(held.owner, consent.root):
                return
    raise consent.refused(there, "which is not confirmed to share files with this table")
