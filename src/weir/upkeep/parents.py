"""The ties between a clone and the tables it shares files with: found dead, cut, cleaned up.

Keeps
  C-3  a pin whose clone never became ready is reclaimable; nothing immortal is left
  C-14 the pin goes before the note of it: a crash in between leaves a note the next pass removes
  C-15 what cannot be seen is not taken for deleted: only the clone's own records, or an operator,
       let go of a pin
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal
from uuid import UUID

from weir.durations import Duration, seconds
from weir.env import SYSTEM, Env
from weir.errors import CommitConflict, CorruptEntry, InvalidInput, StoreError
from weir.format import paths
from weir.lake.manifest.shared_files import borrowed_places
from weir.lake.pylance_lake import PylanceLake
from weir.records.checkpoints import Checkpoint, Checkpoints
from weir.records.lineage import (
    Lineage,
    ParentPin,
    append_lineage,
    lineage_history,
    read_lineage,
)
from weir.routing.core import Core
from weir.routing.opening import open as open_core
from weir.store.api import Store
from weir.store.consent import Consent, same_place
from weir.store.open import normalize, open_store
from weir.upkeep import checkpoint as checkpoints

Options = Mapping[str, str] | None


Word = Literal["holds", "unfinished", "let go", "unseen"]


def reclaimable_pins(
    core: Core, grace: Duration = "1d", *, records: Checkpoints | None = None
) -> list[UUID]:
    """Checkpoints that clones hold here and no longer need, or never will. For collection (C-3).

    A pin is let go when its clone's own records say so: that it does not hold it any more, or that
    it is unfinished, and the pin older than `grace`. A clone that cannot be seen keeps its pin; so
    does one in whose place there is another table now (C-15).
    """
    now = core.store.now()
    limit = seconds(grace, name="grace")
    words = [(pin, _word(core, pin)) for pin in _held(core, records)]
    return [
        pin.id
        for pin, (word, _) in words
        if word == "let go" or (word == "unfinished" and now - pin.created >= limit)
    ]


def unseen_clones(core: Core, *, records: Checkpoints | None = None) -> list[str]:
    """URIs of clones that hold something here for good and cannot be seen from here (C-15)."""
    lasting = [pin for pin in _held(core, records) if pin.expires is None]
    return sorted({str(pin.owner) for pin in lasting if _word(core, pin)[0] == "unseen"})


def release_clone(core: Core, uri: str) -> list[UUID]:
    """Let go of all that the clone at `uri` holds here, and return the ids: an operator's word.

    For a clone that was deleted, or whose disk nobody will mount again; its shared files go with
    the next collection. Raises `InvalidInput` when it holds nothing here, and when it is there and
    shares files: compact and collect it first, or delete it.
    """
    owner = normalize(uri)
    held = [pin for pin in _held(core) if normalize(str(pin.owner)) == owner]
    if not held:
        raise InvalidInput(
            f"{core.uri}: a clone at {owner} holds nothing here; table.checkpoints() lists owners"
        )
    for pin in held:
        if _word(core, pin)[0] == "holds" or not _end(core, pin):
            raise InvalidInput(
                f"{owner} is there, and shares files with {core.uri}: they would be deleted under"
                " it. Delete the clone first, or make it independent (compact, then gc)"
            )
        checkpoints.delete(core, pin.id)
    return [pin.id for pin in held]


def _held(core: Core, records: Checkpoints | None = None) -> list[Checkpoint]:
    return (records or Checkpoints(core.store)).owned()


def _word(core: Core, pin: Checkpoint) -> tuple[Word, Lineage | None]:
    """What the clone that holds `pin` says of it, and its latest record.

    A clone names a pin in its records before it makes it (C-1), and pins have ids of their own:
    whoever never named it is another table, or there is none to be seen.
    """
    assert pin.owner is not None, "C-3: a user's checkpoint is never reclaimed"
    if not core.consent.may_ask(pin.owner):
        return "unseen", None
    try:
        store = open_store(pin.owner, core.storage_options, env=core.env)
        said = lineage_history(store)
    except StoreError:
        return "unseen", None
    naming = [_names(record, core, pin) for record in said]
    if not any(naming):
        return "unseen", None
    if not naming[-1]:
        return "let go", said[-1]
    return ("unfinished" if said[-1].state == "copying" else "holds"), said[-1]


def _names(lineage: Lineage, core: Core, pin: Checkpoint) -> bool:
    """True when the clone says that it holds `pin` in this very table (G-13)."""
    return any(p.checkpoint == pin.id and same_place(p.uri, core.uri) for p in lineage.pins)


def narrow_pins(core: Core, *, records: Checkpoints | None = None) -> int:
    """Let finished clones hold files of the base only: SSTables and log they have copies of (C-14).

    For collection; returns how many pins became narrower. A clone that cannot be asked keeps all.
    """
    records = records or Checkpoints(core.store)
    done = 0
    for held in records.owned():
        if held.owner is None or held.base_only or not core.consent.may_ask(held.owner):
            continue
        try:
            lineage = read_lineage(open_store(held.owner, core.storage_options, env=core.env))
        except StoreError:
            continue
        if lineage is None or lineage.state != "ready":
            continue
        if _names(lineage, core, held):
            done += records.narrow(held)
    return done


def give_up(core: Core, pin: UUID) -> bool:
    """Tell a clone that was not finished that its pin goes; False when it may be needed after all.

    The clone says "ready" with the number after the record it knows, and so do we: one of the two
    is refused (C-3). A clone that lost makes new pins when it is tried again.
    """
    held = Checkpoints(core.store).load(pin)
    if held is None or held.owner is None:
        return False
    return _word(core, held)[0] != "unseen" and _end(core, held)


def _end(core: Core, pin: Checkpoint) -> bool:
    """See to it that the clone at the other end of `pin` never becomes ready with it."""
    word, lineage = _word(core, pin)
    if word != "unfinished":
        return word != "holds"
    assert pin.owner is not None, "C-3: a user's checkpoint is never reclaimed"
    assert lineage is not None, "an unfinished clone was read"
    try:
        store = open_store(pin.owner, core.storage_options, env=core.env)
        append_lineage(store, replace(lineage, pins=()), core.env.new_id())
    except (StoreError, CommitConflict):
        return False
    # Another disk may have been in its place when we wrote: then the clone was told nothing (C-15).
    return _word(core, pin)[0] == "let go"


def detach(core: Core) -> list[str]:
    """Let go of the tables this clone shares no file with any more; returns their URIs (C-14).

    A version that still names one of their files, because it is young or a checkpoint holds it,
    keeps the tie. `table.compact()` and a rewrite of the base make a clone independent, and
    `table.gc()` ends the tie (it calls this). One read for each version the base still has.
    """
    lineage = read_lineage(core.store)
    if lineage is None or not lineage.pins or lineage.state != "ready":
        return []
    if not isinstance(core.lake, PylanceLake):
        return []  # what a model of Lance shares is not written in Lance's manifests
    used = {normalize(place) for place in borrowed_places(core.store)}
    free = [pin for pin in lineage.pins if normalize(pin.uri) not in used]
    for pin in free:
        release_parent(pin, core.uri, core.storage_options, core.env)
    if free:
        kept = tuple(pin for pin in lineage.pins if pin not in free)
        append_lineage(core.store, replace(lineage, pins=kept), core.env.new_id())
    return [pin.uri for pin in free]


def discard(uri: str, storage_options: Options = None, *, env: Env = SYSTEM) -> None:
    """Remove a clone that was not finished: its pins in the parents first, then its objects (C-3).

    Raises `InvalidInput` for a table that is in use. Idempotent.
    """
    store = open_store(uri, storage_options, env=env)
    lineage = read_lineage(store)
    if lineage is None:
        return
    if lineage.state != "copying":
        raise InvalidInput(f"{store.uri} is a finished table, not the rest of a failed clone")
    for pin in lineage.pins:
        release_parent(pin, store.uri, storage_options or {}, env)
    _remove(store)


def release_parent(pin: ParentPin, owner: str, options: Mapping[str, str], env: Env) -> None:
    """Let go of what `owner` holds there, and of nothing that others do (G-13)."""
    consent = Consent.of(owner, options)
    if not consent.may_ask(pin.uri):
        raise consent.refused(pin.uri, "as a table it was cloned from")
    parent = open_core(pin.uri, storage_options=options, env=env)
    held = Checkpoints(parent.store).load(pin.checkpoint)
    if held is None:
        return  # and what may be left of it is that table's own to clean up
    if not same_place(held.owner, owner):
        raise CorruptEntry(
            f"the lineage of {owner} ({paths.clone_chain()}) names checkpoint {pin.checkpoint} of"
            f" {pin.uri} as its own, but {held.owner or 'a user'} holds that one: it stays. If the"
            " clone was moved, delete the checkpoint there by its id"
        )
    checkpoints.delete(parent, pin.checkpoint)


def _remove(store: Store) -> None:
    """The lineage last: as long as it is there, nobody takes the rest for a table.

    Only from folders that a clone writes to: the place may hold other things as well (G-13).
    """
    everything = [meta.path for folder in paths.TABLE_FOLDERS for meta in store.list(folder)]
    lineage = [path for path in everything if path.startswith(f"{paths.clone_chain()}/")]
    rest = [path for path in everything if path not in set(lineage)]
    for paths_ in (rest, lineage):
        if paths_:
            store.delete(paths_)
