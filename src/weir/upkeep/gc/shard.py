"""Collects shards: list all, raise the floors of all, read the pins once, decide, delete.

Each step runs for every shard, several shards at once, before the next step begins. A collection
of n shards reads the pins and the base once, not n times: a checkpoint has a pin of every shard.

Keeps
  G-4  folders are listed before the manifest is read
  G-6, G-7c, K-1b  floors of every shard rise before the pins are read, and before anything goes
  G-11 an object that cannot be read keeps everything it might name
  S-5  a WAL store that cannot be listed is left alone, and the report says so
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

from weir.errors import WeirError
from weir.format import paths
from weir.lake.api import Base
from weir.lake.index import released_generation
from weir.log.manifests import State, latest_of
from weir.store.api import Store
from weir.upkeep.gc.run import GcRun, Item
from weir.upkeep.gc.visit import Doomed, Visit

LISTED_MAX: Final = 1_000_000
"""Listed objects held in memory, 24 bytes each; a table with more is collected in waves, and the
pins are read once per wave."""
_FIRST_LISTED: Final = 64
"""Shards listed at once to learn how many objects they have; then as many as the bound allows, so
that more shards make no more rounds."""
_FOLDERS_LISTED: Final = 64


def collect_shards(job: GcRun) -> dict[UUID, int]:
    """Collect what is dead in the shards, and return those that are finished, with the routings
    they were made under (C-17). A shard that fails is reported, the others go on; raises when it is
    not known what is held (G-11)."""
    waiting = job.core.shard_ids()
    finished: dict[UUID, int] = {}
    while waiting:
        visits: list[Visit] = []
        listed, size = 0, _FIRST_LISTED
        while waiting and listed < LISTED_MAX:
            group = [Visit(job, shard) for shard in waiting[:size]]
            del waiting[:size]
            looked = _look(job, group)
            visits += looked
            found = sum(visit.listed for visit in looked)
            listed += found
            # Half of what is left: the next shards may have more objects than these.
            size = max(1, (LISTED_MAX - listed) * len(group) // (2 * max(1, found)))
        _collect_wave(visits, job)
        for visit in visits:
            if visit.finished_under is not None:
                finished[visit.site.shard] = visit.finished_under
    return finished


def _look(job: GcRun, visits: list[Visit]) -> list[Visit]:
    """List the shards, then read their manifests (G-4).

    Where one names another store, the log there is listed next, and the manifest read again.
    """
    listed = _each(job, visits, Visit.list_beside_the_data)
    job.core.env.failpoint("gc.listed")
    looked = _read(job, listed, Visit.see)
    apart = [visit for visit in looked if visit.is_apart]
    reached = _each(job, apart, Visit.list_elsewhere)
    again = {id(visit) for visit in _read(job, reached, Visit.see)}
    return [visit for visit in looked if visit not in apart or id(visit) in again]


def _read(job: GcRun, visits: list[Visit], step: Callable[[Visit, State], bool]) -> list[Visit]:
    """Run a step with the latest manifest of each shard: two rounds of requests for all."""
    logs = {visit.site.shard: job.core.log(visit.site.shard).manifests for visit in visits}
    try:
        states = dict(zip(logs, latest_of([*logs.values()]), strict=True))
    except WeirError:  # that of one shard; the others are read one by one
        states = {}

    def one(visit: Visit) -> bool:
        return step(
            visit, states.get(visit.site.shard) or logs[visit.site.shard].latest_with_floors()
        )

    return _each(job, visits, one)


def _collect_wave(visits: list[Visit], job: GcRun) -> None:
    folded = _read_folded(visits, job)
    visits = _each(job, visits, lambda visit: visit.prune_and_raise(folded))
    if not visits:
        return
    # K-1b for all shards at once: every floor is raised. A checkpoint whose record is not found
    # here is recorded later, and sees these floors.
    pins = job.holds.pins(job.expired)
    job.look_for_statements()
    # A restore may have named SSTables again that only a checkpoint held. If that checkpoint is
    # already gone from the pins, the manifest read after them is the restored one.
    visits = _read(job, visits, lambda visit, state: visit.decide(pins, state))
    _delete(visits, job)


def _each(job: GcRun, visits: list[Visit], step: Callable[[Visit], bool]) -> list[Visit]:
    """Run a step for every shard; returns the visits that go on, in order."""

    def one(visit: Visit) -> bool:
        try:
            return step(visit)
        except WeirError as error:  # guard: G-10
            visit.error = error
            return False

    going = job.core.env.threads.map(one, visits, workers=job.core.workers)
    for visit in visits:
        if visit.error is not None:
            job.fail(str(visit.site), visit.error)
            visit.error = None
    return [visit for visit, goes in zip(visits, going, strict=True) if goes]


def _read_folded(visits: Sequence[Visit], job: GcRun) -> dict[UUID, int]:
    """By shard, the last generation whose rows have been in the base for `min_age` (X-4); empty
    when there is nothing to prune.

    Read after every manifest, and used only in the epochs of those manifests: a restore claims a
    shard before it names folded SSTables again, so a mark from before it is not used after it.
    """
    shards = [visit.site.shard for visit in visits if visit.has_sstables]
    if "sstables" not in job.kinds or not shards:
        return {}
    try:
        latest = job.core.lake.open_base()
        settled: Base | None = latest
        if job.ages.min_age:  # guard: X-4 test_shared_tables
            # readers with an older version of the base (LanceDB's handles, for as long as they
            # live) read current manifests: a row that left those would be in neither.
            settled = job.core.lake.base_before(job.now - job.ages.min_age)
    except WeirError as error:
        job.fail("reading the base", error)
        return {}
    if settled is None:
        return {}
    return {s: min(released_generation(base, s) for base in (latest, settled)) for s in shards}


def _delete(visits: Sequence[Visit], job: GcRun) -> None:
    """Delete what is doomed; the shards share bulk requests of a thousand objects each."""
    together: dict[tuple[str, Store | None], list[Doomed]] = {}
    for visit in visits:
        for doomed in visit.doomed:
            together.setdefault((doomed.kind, doomed.wal), []).append(doomed)
    for (kind, wal), parts in together.items():
        items = (item for part in parts for item in part.items)
        job.delete(kind, items, total=sum(part.total for part in parts), wal=wal)
    if "sstables" in job.kinds:
        folders = [paths.sstable_dir(v.site.shard, name) for v in visits for name in v.folders]
        objects = sum(visit.folder_objects for visit in visits)
        job.delete("sstables", _contents(folders, job), total=objects)


def _contents(folders: Sequence[str], job: GcRun) -> Iterator[Item]:
    """Every object in `folders`, a few of which are listed at once."""
    core = job.core

    def listed(folder: str) -> list[Item]:
        return [(meta.path, meta.size) for meta in core.store.list(folder)]

    for start in range(0, len(folders), _FOLDERS_LISTED):
        part = list(folders[start : start + _FOLDERS_LISTED])
        for items in core.env.threads.map(listed, part, workers=core.workers):
            yield from items
