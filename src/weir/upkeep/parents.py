"""The pins of a clone in the tables it shares files with: narrowing and releasing them.

Only the clone and an operator do so: collection in the parent never opens a clone.

Keeps
  C-3  a pin whose clone never became ready expires, or is named until an operator releases it
  C-14 the pin is deleted before the note of it: after a crash in between the next pass removes the
       note
  C-15 a clone that cannot be seen does not count as deleted
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from weir.env import SYSTEM, Env
from weir.errors import CommitConflict, CorruptEntry, InvalidInput, NotAWeirTable, StoreError
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.lake.manifest.shared_files import borrowed_places
from weir.records.checkpoints import Checkpoint
from weir.records.holds import Holds
from weir.records.lineage import (
    KEEP_WITHOUT_PARENT,
    Lineage,
    ParentPin,
    append_lineage,
    read_lineage,
)
from weir.records.table import TableRecords
from weir.routing.core import Core
from weir.routing.opening import open as open_core
from weir.store.api import Store
from weir.store.consent import Consent, same_place
from weir.store.open import normalize, open_store
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.burial import bury_unfinished, delete, remains

logger = logging.getLogger("weir.upkeep")

Options = Mapping[str, str] | None

UNFINISHED_SECONDS: Final = 86_400.0
"""A clone that is made gets this long before collection names its pins as left over."""


def release_clone(core: Core, uri: str) -> list[UUID]:
    """See `Table.release_clone`."""
    owner = normalize(uri)
    held = [pin for pin in Holds(core.store).clone_pins() if normalize(str(pin.owner)) == owner]
    if not held:
        raise InvalidInput(
            f"{core.uri}: no clone at {owner} has a pin here; table.checkpoints(), or weir"
            " checkpoint list, shows who has"
        )
    if _is_needed(core, owner, held):  # guard: C-15
        raise InvalidInput(
            f"the clone {owner} still exists and needs files of {core.uri}, which would be"
            f" deleted. Delete the clone first. {KEEP_WITHOUT_PARENT}"
        )
    for pin in held:
        checkpoints.delete(core, pin.id)
    return [pin.id for pin in held]


def _is_needed(core: Core, owner: str, held: Sequence[Checkpoint]) -> bool:
    """Whether the clone at `owner` is, or is about to be, a table that needs one of its pins.

    An unfinished one is told that they go: it says "ready" in the record that follows the last one
    it knows, and this call appends the same number, so one of the two is refused (C-3). A clone
    that cannot be reached counts as gone: an operator says so (C-15).
    """
    if not core.consent.may_ask(owner):
        return False
    try:
        store = open_store(owner, core.storage_options, env=core.env)
        lineage = read_lineage(store)
        if lineage is None or not any(_names(lineage, core, pin) for pin in held):
            return False  # another table is in its place, or none, or it needs the pins no longer
        if lineage.state == "copying":
            # guard: C-3 test_clone_interrupted
            append_lineage(store, replace(lineage, pins=()), core.env.new_id())
            return False
    except StoreError:
        return False
    except CommitConflict:
        return True
    return True


def _names(lineage: Lineage, core: Core, pin: Checkpoint) -> bool:
    """True when the clone says that it holds `pin` in this very table (G-13)."""
    # guard: G-13 last test_inside_the_table
    return any(p.checkpoint == pin.id and same_place(p.uri, core.uri) for p in lineage.pins)


def left_over_pins(pins: Sequence[Checkpoint], now: float) -> list[str]:
    """A sentence for each pin of a clone whose maker died before it had finished (C-3).

    A clone narrows its pins in its last step. A collector names the others: it does not open the
    clone, whose disk may not be mounted (C-15).
    """
    limit = now - UNFINISHED_SECONDS
    return [
        f"checkpoint {pin.id} is kept: it belongs to the clone {pin.owner}, which was not finished"
        " in a day. Run the same clone again, or give it up:"
        f" table.release_clone({pin.owner!r}), or weir checkpoint release"
        for pin in pins
        if pin.owner and pin.expires is None and not pin.base_only and pin.created <= limit
    ]


def settle_pins(core: Core) -> list[str]:
    """Release the tables this clone no longer shares a file with; returns their URIs (C-14).

    What it still needs of the others is files of their base: it has copies of SSTables and log. A
    version that still names a file of a parent, because it is young or a checkpoint holds it, keeps
    the pin. A clone is independent once every row of it was written anew and folded, and
    `table.gc()` releases the pin (it calls this). One read for each version the base still has.
    """
    lineage = read_lineage(core.store)
    if lineage is None or not lineage.pins or lineage.state != "ready":
        return []
    free = _unshared(core, lineage)
    for pin in lineage.pins:
        if pin in free:
            release_parent(pin, core.uri, core.storage_options, core.env)
        else:
            _narrow(core, pin)  # guard: C-14
    if free:
        kept = tuple(pin for pin in lineage.pins if pin not in free)
        append_lineage(core.store, replace(lineage, pins=kept), core.env.new_id())
    return [pin.uri for pin in free]


def _unshared(core: Core, lineage: Lineage) -> list[ParentPin]:
    if not core.lake.is_lance:
        return []  # a model of Lance does not name shared files in Lance's manifests
    used = {normalize(place) for place in borrowed_places(core.store)}
    return [pin for pin in lineage.pins if normalize(pin.uri) not in used]


def _narrow(core: Core, pin: ParentPin) -> None:
    """Let the parent collect what this clone has copied (C-14)."""
    if not core.consent.may_ask(pin.uri):
        return
    records = Holds(open_store(pin.uri, core.storage_options, env=core.env))
    held = records.load(pin.checkpoint)
    if held is not None and not held.base_only and same_place(held.owner, core.uri):
        records.narrow(held)


def discard(uri: str, storage_options: Options = None, *, env: Env = SYSTEM) -> None:
    """See `Table.discard_clone`: its pins in the parents go first, then its objects (C-3)."""
    store = open_store(uri, storage_options, env=env)
    lineage = read_lineage(store)
    if lineage is None:
        return
    if lineage.state != "copying":
        raise InvalidInput(
            f"{store.uri} is a complete table, not a failed clone; nothing was deleted"
        )
    release_parents(lineage.pins, store.uri, storage_options or {}, env)
    _remove(store, env)


def release_parents(
    pins: Sequence[ParentPin], owner: str, options: Mapping[str, str], env: Env
) -> None:
    """Release all pins of a table that goes itself.

    A parent that is not there keeps its pin, should it come back: `release_clone` lets go of it.
    """
    for pin in pins:
        try:
            release_parent(pin, owner, options, env)
        except NotAWeirTable as gone:  # guard: C-15 test_unseen_clones
            logger.warning(
                "parent.gone table=%s pin=%s reason=%s; if it comes back, release the pin there:"
                " table.release_clone(%r)",
                owner,
                pin.checkpoint,
                gone,
                owner,
            )


def release_parent(pin: ParentPin, owner: str, options: Mapping[str, str], env: Env) -> None:
    """Release the pin that `owner` holds there, and nothing that others hold (G-13)."""
    consent = Consent.of(owner, options)
    if not consent.may_ask(pin.uri):
        raise consent.refused(pin.uri, "as a table it was cloned from")
    parent = open_core(pin.uri, storage_options=options, env=env)
    held = Holds(parent.store).load(pin.checkpoint)
    if held is None:
        return  # that table cleans up whatever is left of it
    if not same_place(held.owner, owner):  # guard: G-13 test_inside_the_table
        raise CorruptEntry(
            f"the lineage of {owner} ({paths.clone_chain()}) names checkpoint {pin.checkpoint} of"
            f" {pin.uri} as its pin, but that belongs to {held.owner or 'a user'}; it was kept. If"
            " the clone was moved, delete the checkpoint there by its id"
        )
    checkpoints.delete(parent, pin.checkpoint)


def _remove(store: Store, env: Env) -> None:
    """Delete the clone's objects, the lineage last: while it exists, the rest is not a table.

    Only folders that a clone writes to are touched: the place may hold other things too (G-13).
    """
    records = TableRecords(store)
    graves: list[ShardManifest] = []
    if records.holds_graves():  # C-16: what stops the writers of a dropped table stays
        if records.find() is not None:
            records.update(lambda record: replace(record, state="dropped"), env)
        graves = bury_unfinished(store, env)
    listed = [meta for folder in paths.TABLE_FOLDERS for meta in store.list(folder)]
    stay = remains(store, listed, graves) if graves else set()
    lineage = {meta.path for meta in listed if meta.path.startswith(f"{paths.clone_chain()}/")}
    delete(store, {meta.path for meta in listed} - lineage - stay)
    delete(store, lineage)
