"""The pins of a clone in the tables it shares files with: reclaiming, narrowing, releasing them.

Keeps
  C-3  a pin whose clone never became ready is reclaimable: a failed clone leaves no immortal pin
  C-14 the pin is deleted before the note of it: after a crash in between the next pass removes the
       note
  C-15 a clone that cannot be seen does not count as deleted: only its own records, or an operator,
       release a pin
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


CloneStatus = Literal["holds", "unfinished", "let go", "unseen"]


def reclaimable_pins(
    core: Core, grace: Duration = "1d", *, records: Checkpoints | None = None
) -> list[UUID]:
    """Pins that clones hold here and no longer need, or never will. For collection (C-3).

    The clone's own records decide: they no longer name the pin, or they say that the clone is
    unfinished and the pin is older than `grace`. A clone that cannot be seen keeps its pin; so does
    one whose place is now taken by another table (C-15).
    """
    now = core.store.now()
    limit = seconds(grace, name="grace")
    words = [(pin, _clone_status(core, pin)) for pin in _held(core, records)]
    return [
        pin.id
        for pin, (word, _) in words
        if word == "let go" or (word == "unfinished" and now - pin.created >= limit)
    ]


def unseen_clones(core: Core, *, records: Checkpoints | None = None) -> list[str]:
    """URIs of clones that have permanent pins here and cannot be seen from here (C-15)."""
    lasting = [pin for pin in _held(core, records) if pin.expires is None]
    return sorted({str(pin.owner) for pin in lasting if _clone_status(core, pin)[0] == "unseen"})


def release_clone(core: Core, uri: str) -> list[UUID]:
    """Release all pins of the clone at `uri`, on an operator's word; returns their ids.

    For a clone that was deleted, or whose disk nobody will mount again; the next collection deletes
    the files it shared. Raises `InvalidInput` when it holds nothing here, or when it still exists
    and shares files: compact and collect it first, or delete it.
    """
    owner = normalize(uri)
    held = [pin for pin in _held(core) if normalize(str(pin.owner)) == owner]
    if not held:
        raise InvalidInput(
            f"{core.uri}: no clone at {owner} has a pin here; table.checkpoints() lists the owners"
        )
    for pin in held:
        if not _end(core, pin, _clone_status(core, pin)):
            raise InvalidInput(
                f"the clone {owner} still exists and needs files of {core.uri}, which would be"
                " deleted. Delete the clone first, or make it independent (compact, then gc)"
            )
        checkpoints.delete(core, pin.id)
    return [pin.id for pin in held]


def _held(core: Core, records: Checkpoints | None = None) -> list[Checkpoint]:
    return (records or Checkpoints(core.store)).owned()


def _clone_status(core: Core, pin: Checkpoint) -> tuple[CloneStatus, Lineage | None]:
    """What the clone that holds `pin` says of it, and its latest record.

    A clone names a pin in its records before it makes it (C-1), and pins have unique ids: if no
    record there names it, the place holds another table, or none that can be seen.
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
    """Narrow pins of finished clones to the base: they have copies of SSTables and log (C-14).

    For collection; returns how many pins became narrower. A clone that cannot be read keeps all.
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
    """Tell an unfinished clone that its pin is going; False when the pin may still be needed.

    The clone says "ready" in the record that follows the last one it knows, and this call appends
    the same number: one of the two is refused (C-3). A clone that lost makes new pins on a retry.
    """
    held = Checkpoints(core.store).load(pin)
    if held is None or held.owner is None:
        return False
    found = _clone_status(core, held)
    return found[0] != "unseen" and _end(core, held, found)


def _end(core: Core, pin: Checkpoint, found: tuple[CloneStatus, Lineage | None]) -> bool:
    """Make sure that the clone which holds `pin` never becomes ready with it.

    `found` is the status that the caller decided on: looked up again, a clone whose disk was
    unmounted in between would seem to be one that an operator has called gone (C-15).
    """
    word, lineage = found
    if word != "unfinished":
        return word != "holds"
    assert pin.owner is not None, "C-3: a user's checkpoint is never reclaimed"
    assert lineage is not None, "an unfinished clone was read"
    try:
        store = open_store(pin.owner, core.storage_options, env=core.env)
        append_lineage(store, replace(lineage, pins=()), core.env.new_id())
    except (StoreError, CommitConflict):
        return False
    # Another disk may have been mounted there: then the clone did not get the record (C-15).
    return _clone_status(core, pin)[0] == "let go"


def detach(core: Core) -> list[str]:
    """Release the tables this clone no longer shares a file with; returns their URIs (C-14).

    A version that still names one of their files, because it is young or a checkpoint holds it,
    keeps the pin. `table.compact()` and a rewrite of the base make a clone independent, and
    `table.gc()` releases the pin (it calls this). One read for each version the base still has.
    """
    lineage = read_lineage(core.store)
    if lineage is None or not lineage.pins or lineage.state != "ready":
        return []
    if not isinstance(core.lake, PylanceLake):
        return []  # a model of Lance does not name shared files in Lance's manifests
    used = {normalize(place) for place in borrowed_places(core.store)}
    free = [pin for pin in lineage.pins if normalize(pin.uri) not in used]
    for pin in free:
        release_parent(pin, core.uri, core.storage_options, core.env)
    if free:
        kept = tuple(pin for pin in lineage.pins if pin not in free)
        append_lineage(core.store, replace(lineage, pins=kept), core.env.new_id())
    return [pin.uri for pin in free]


def discard(uri: str, storage_options: Options = None, *, env: Env = SYSTEM) -> None:
    """Remove an unfinished clone: its pins in the parents first, then its objects (C-3).

    Raises `InvalidInput` for a table that is in use. Idempotent.
    """
    store = open_store(uri, storage_options, env=env)
    lineage = read_lineage(store)
    if lineage is None:
        return
    if lineage.state != "copying":
        raise InvalidInput(
            f"{store.uri} is a complete table, not a failed clone; nothing was deleted"
        )
    for pin in lineage.pins:
        release_parent(pin, store.uri, storage_options or {}, env)
    _remove(store)


def release_parent(pin: ParentPin, owner: str, options: Mapping[str, str], env: Env) -> None:
    """Release the pin that `owner` holds there, and nothing that others hold (G-13)."""
    consent = Consent.of(owner, options)
    if not consent.may_ask(pin.uri):
        raise consent.refused(pin.uri, "as a table it was cloned from")
    parent = open_core(pin.uri, storage_options=options, env=env)
    held = Checkpoints(parent.store).load(pin.checkpoint)
    if held is None:
        return  # that table cleans up whatever is left of it
    if not same_place(held.owner, owner):
        raise CorruptEntry(
            f"the lineage of {owner} ({paths.clone_chain()}) names checkpoint {pin.checkpoint} of"
            f" {pin.uri} as its pin, but that belongs to {held.owner or 'a user'}; it was kept. If"
            " the clone was moved, delete the checkpoint there by its id"
        )
    checkpoints.delete(parent, pin.checkpoint)


def _remove(store: Store) -> None:
    """Delete the clone's objects, the lineage last: while it exists, the rest is not a table.

    Only folders that a clone writes to are touched: the place may hold other things too (G-13).
    """
    everything = [meta.path for folder in paths.TABLE_FOLDERS for meta in store.list(folder)]
    lineage = [path for path in everything if path.startswith(f"{paths.clone_chain()}/")]
    rest = [path for path in everything if path not in set(lineage)]
    for paths_ in (rest, lineage):
        if paths_:
            store.delete(paths_)
