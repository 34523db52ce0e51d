"""The ties between a clone and the tables it shares files with: found dead, cut, cleaned up.

Keeps
  C-3  a pin whose clone is gone, or never became ready, is reclaimable; nothing immortal is left
  C-14 the pin goes before the note of it: a crash in between leaves a note the next pass removes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from weir.durations import Duration, seconds
from weir.env import SYSTEM, Env
from weir.errors import CommitConflict, InvalidInput, StoreError
from weir.format import paths
from weir.lake.manifest.shared_files import borrowed_places
from weir.lake.pylance_lake import PylanceLake
from weir.records.checkpoints import Checkpoint, Checkpoints
from weir.records.lineage import ParentPin, append_lineage, read_lineage
from weir.store.api import Store
from weir.store.open import normalize, open_store
from weir.table.making import open as open_table
from weir.table.table import Table
from weir.upkeep import checkpoint as checkpoints

Options = Mapping[str, str] | None


def reclaimable_pins(table: Table, grace: Duration = "1d") -> list[UUID]:
    """Checkpoints that clones hold here and no longer need, or never will. For collection (C-3).

    A pin is let go when its clone says it does not hold it, or when the clone is missing or
    unfinished and the pin older than `grace`. A clone that cannot be asked keeps its pin; so does
    one on a local path of a table that is not local: it may be the disk of another machine.
    """
    core = table.core
    held = [c for c in checkpoints.checkpoints(table) if c.owner is not None]
    if not held:
        return []
    now = core.store.now()
    limit = seconds(grace, name="grace")
    return [c.id for c in held if _is_dead(table, c, old=now - c.created >= limit)]


def _is_dead(table: Table, pin: Checkpoint, *, old: bool) -> bool:
    assert pin.owner is not None, "C-3: a user's checkpoint is never reclaimed"
    core = table.core
    try:
        lineage = read_lineage(open_store(pin.owner, core.storage_options, env=core.env))
    except StoreError:
        return False
    if lineage is None:
        elsewhere = "://" not in pin.owner and "://" in core.uri
        return old and not elsewhere
    if not any(p.checkpoint == pin.id for p in lineage.pins):
        return True
    return lineage.state == "copying" and old


def narrow_pins(table: Table) -> int:
    """Let finished clones hold files of the base only: SSTables and log they have copies of (C-14).

    For collection; returns how many pins became narrower. A clone that cannot be asked keeps all.
    """
    core = table.core
    records = Checkpoints(core.store)
    done = 0
    for held in checkpoints.checkpoints(table):
        if held.owner is None or held.base_only:
            continue
        try:
            lineage = read_lineage(open_store(held.owner, core.storage_options, env=core.env))
        except StoreError:
            continue
        if lineage is None or lineage.state != "ready":
            continue
        if any(p.checkpoint == held.id for p in lineage.pins):
            done += records.narrow(held)
    return done


def give_up(table: Table, pin: UUID) -> bool:
    """Tell a clone that was not finished that its pin goes; False when it may be needed after all.

    The clone says "ready" with the number after the record it knows, and so do we: one of the two
    is refused (C-3). A clone that lost makes new pins when it is tried again.
    """
    core = table.core
    held = Checkpoints(core.store).load(pin)
    if held is None or held.owner is None:
        return False
    try:
        store = open_store(held.owner, core.storage_options, env=core.env)
        lineage = read_lineage(store)
        if lineage is None or not any(p.checkpoint == pin for p in lineage.pins):
            return True
        if lineage.state != "copying":
            return False
        append_lineage(store, replace(lineage, pins=()), core.env.new_id())
    except (StoreError, CommitConflict):
        return False
    return True


def detach(table: Table) -> list[str]:
    """Let go of the tables this clone shares no file with any more; returns their URIs (C-14).

    A version that still names one of their files, because it is young or a checkpoint holds it,
    keeps the tie. `table.compact()` and a rewrite of the base make a clone independent, and
    `table.gc()` ends the tie (it calls this). One read for each version the base still has.
    """
    core = table.core
    lineage = read_lineage(core.store)
    if lineage is None or not lineage.pins or lineage.state != "ready":
        return []
    if not isinstance(core.lake, PylanceLake):
        return []  # what a model of Lance shares is not written in Lance's manifests
    used = {normalize(place) for place in borrowed_places(core.store)}
    free = [pin for pin in lineage.pins if normalize(pin.uri) not in used]
    for pin in free:
        _release(pin, core.storage_options, core.env)
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
        _release(pin, storage_options or {}, env)
    _remove(store)


def _release(pin: ParentPin, options: Mapping[str, str], env: Env) -> None:
    checkpoints.delete(open_table(pin.uri, storage_options=options, env=env), pin.checkpoint)


def _remove(store: Store) -> None:
    """The lineage last: as long as it is there, nobody takes the rest for a table."""
    everything = [meta.path for meta in store.list("")]
    lineage = [path for path in everything if path.startswith(f"{paths.clone_chain()}/")]
    rest = [path for path in everything if path not in set(lineage)]
    for paths_ in (rest, lineage):
        if paths_:
            store.delete(paths_)
