"""Whose files a base may name: its own, and those of tables that hold a pin for it.

A version of the base is written by whoever may write below the table, and can name files anywhere.
The table they lie in is asked: a clone's pin there bears the clone's URI, and nobody who can write
to the clone alone can put it there (G-13).
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.env import Env
from weir.errors import InvalidInput
from weir.records.checkpoints import Checkpoints
from weir.records.lineage import read_lineage
from weir.store.api import Store
from weir.store.consent import Consent, same_place
from weir.store.open import normalize, open_store


def require_shared(
    place: str, store: Store, consent: Consent, options: Mapping[str, str], env: Env
) -> None:
    """`StoreDenied` unless the table at `place` shares files with the one in `store`, by its word.

    A list and a get for our lineage, a list and two gets for each pin there.
    """
    try:
        there = normalize(place)
    except InvalidInput as error:
        raise consent.refused(place, f"which is no place ({error})") from None
    if consent.covers(there):
        return
    lineage = read_lineage(store)
    pins = [] if lineage is None else [p for p in lineage.pins if same_place(p.uri, there)]
    if pins and consent.may_ask(there):
        records = Checkpoints(open_store(there, options, env=env))
        for pin in pins:
            held = records.load(pin.checkpoint)
            if held is not None and same_place(held.owner, consent.root):
                return
    raise consent.refused(there, "where no checkpoint is held for it")
