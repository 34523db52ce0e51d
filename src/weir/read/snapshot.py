"""A consistent cut of the table.

Keeps
  L-1  shard manifests first, WAL tails next, the base last: rows only ever move towards a place
       that is read later
  L-5  the base is at one version before and after the logs are read: nothing was folded in between
  L-2  sealed shards are older than their heirs
  C-11 rows of a new routing are seen with all of the old one: the table's record did not change
       while the shards were read, so no heir was written before its predecessors were read
  K-7  a reader at a checkpoint sees nothing past its T
  P-8  a statement over several shards is seen in all of them or in none: if the marks of the shards
       after their logs were read are not those from before, or say that a statement may be open,
       the record of statements tells which to add. If one was closed meanwhile, the cut is taken
       again
A snapshot is a few numbers per shard and is sent as JSON; every process that opens it reads
the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args
from uuid import UUID

from msgspec import structs

from weir.errors import CheckpointNotFound, InvalidInput, SnapshotExpired
from weir.format import paths
from weir.log.floors import FloorValues, load_all
from weir.meters import SNAPSHOT_SECONDS, SNAPSHOT_TRIES
from weir.read.probes import Choice, ProbePlan, Probes, ask_tips
from weir.records import codec
from weir.records.cut import ShardCut
from weir.records.statements import Share, StatementRecords, is_open_mark
from weir.routing.core import Core
from weir.routing.guard import find_rivals, known_rivals
from weir.types import Position, Version

Freshness = Literal["base", "flushed", "durable"]


class Pinned(Protocol):
    """A checkpoint as a reader needs it: `weir.Checkpoint` is one."""

    @property
    def base_version(self) -> int:
        """The pinned version of the base."""

    @property
    def shards(self) -> Sequence[ShardCut]:
        """The pinned shards."""

    @property
    def created(self) -> float:
        """Creation time in seconds since 1970; rows that had expired by then are hidden."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one read sees. Immutable; valid until collection passes it."""

    base_version: int
    freshness: Freshness
    cuts: tuple[ShardCut, ...]
    at: float = field(default=0.0, compare=False)
    """The time at which expiry is judged, in seconds since 1970: the same for every part of a read,
    in any process."""
    is_pinned: bool = field(default=False, compare=False)
    """A checkpoint holds its objects. Otherwise entries may be collected while the snapshot is
    read, and a writer that slept may put new ones at their positions (G-7b)."""

    overlapping: frozenset[UUID] = field(default=frozenset(), compare=False)
    """Shards that may hold keys of other shards: rivals, and others outside the routing (X-3)."""

    def to_json(self) -> str:
        """The snapshot as JSON text, for another process."""
        return codec.dumps(self).decode()

    @staticmethod
    def from_json(text: str) -> Snapshot:
        """Parse the text made by `to_json`; `InvalidInput` for anything else."""
        try:
            return codec.decode(text, Snapshot)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not a snapshot: {error}") from error


def check_freshness(freshness: Any) -> Freshness:
    """The level of freshness, or `InvalidInput`."""
    if freshness not in get_args(Freshness):
        raise InvalidInput(
            f"freshness must be one of {list(get_args(Freshness))}, got {freshness!r}"
        )
    level: Freshness = freshness
    return level


def take_snapshot(
    core: Core, freshness: Freshness = "durable", *, choose: Choice = list
) -> Snapshot:
    """A cut of the table as it is now, limited to the shards that `choose` picks.

    Two rounds of requests, each sent concurrently:

        round 1   of each known shard three objects (`probes`). A shard that is not known, or has
                  more than new entries, is read from its manifest on: two requests, seven for the
                  tip, and one for its floors
        round 2   the floors of each shard, the latest version of the base, the list of shards; the
                  number of the table's record, if a shard was read (C-11, C-16)

    The cut is taken again if the base, the shards or the record moved while it was taken. A handle
    that knows nothing yet begins with round 2. While a statement over several shards is under way:
    one list and one get more (P-8).
    """
    check_freshness(freshness)
    env = core.env
    return env.meters.timed(
        lambda: _take(core, freshness, choose), env.clock, SNAPSHOT_SECONDS, freshness
    )


def _take(core: Core, freshness: Freshness, choose: Choice) -> Snapshot:
    at = core.env.clock.wall()
    if freshness == "base":
        version = core.lake.open_base().version
        core.record_number()
        return Snapshot(version, freshness, (), at)
    if freshness == "flushed":
        return _flushed(core, choose, at)
    for tries in core.env.attempts(first_delay=0):
        seen = _durable(core, choose)
        if seen is not None:
            core.env.meters.add(SNAPSHOT_TRIES, tries)
            return _snapshot(core, seen[0], freshness, seen[1], at)
    raise _restless(core)


def _durable(core: Core, choose: Choice) -> tuple[int, list[ShardCut]] | None:
    """The base version and the cuts; None if something moved. Then the handle knows more."""
    probes, number = core.attached.of(Probes), core.known_number
    table = probes.table
    version, ids = (0, []) if table is None else table
    chosen = choose(list(ids))
    plan = probes.plan(core, chosen)
    tips = ask_tips(core, plan)
    read = [*plan.unknown]
    read += [one.site.shard for one, tip in zip(plan.shards, tips, strict=True) if tip is None]
    walks = [walk for walk in _walked(core, read) if walk is not None]
    marks = [*plan.marks, *(paths.floors_dir(walk.cut.shard) for walk in walks)]
    asked: list[Callable[[], Any]] = [
        core.shard_ids,
        lambda: load_all(core.store, marks),
        # Without any shard nothing else would show that the table was dropped (C-16).
        core.record_number if read or not chosen else lambda: number,
        # L-1: after every manifest and tail, so it includes rows folded while they were read.
        lambda: core.lake.open_base().version,
    ]
    answers = core.env.threads.map(lambda ask: ask(), asked, workers=core.workers)
    now = probes.table = (answers[3], answers[0])
    # Rows flushed or folded since the cut would be read from the log and from the base, next to
    # others written after the cut (L-5). A base that did not move holds none of them.
    # guard: L-5 first test_snapshot_rounds
    is_still = now == table and answers[2] == number  # guard: C-11 last
    floors = answers[1]
    cuts = _proved(core, plan, tips, floors[: len(plan.marks)])
    after = floors[len(plan.marks) :]
    refuted = [w for w, seen in zip(walks, after, strict=True) if not w.is_vouched(core, seen)]
    # Of a shard that was read from its manifest on, the marks from before that do not matter.
    known = zip(plan.floors, floors[: len(plan.marks)], tips, strict=True)
    looks = [(before, seen) for before, seen, tip in known if tip is not None]
    looks += [(walk.floors, seen) for walk, seen in zip(walks, after, strict=True)]
    staged = _staged(core, looks)
    if cuts is None or staged is None or refuted or not is_still:
        return None
    if not read and not staged and cuts is plan.cuts:
        probes.keep(plan)
        return version, cuts
    found = {walk.cut.shard: walk.cut for walk in walks} | {cut.shard: cut for cut in cuts}
    ordered = [cut for cut in map(found.get, chosen) if cut is not None]
    return version, [structs.replace(cut, staged=staged.get(cut.shard)) for cut in ordered]


def _staged(
    core: Core, looks: Sequence[tuple[FloorValues, FloorValues]]
) -> Mapping[UUID, Share] | None:
    """By shard, what a statement has decided to write and may not have written before this cut.

    None: a statement was closed since the handle last asked, perhaps in the middle of this cut. The
    marks were read before each log, and after all logs: a mark rises in every shard of a statement
    before it is decided, and again once it is in every log (P-8).
    """
    is_quiet = all(
        before.statement == after.statement and not is_open_mark(after.statement)
        for before, after in looks
    )
    if is_quiet:  # guard: P-8 test_statements_over_shards
        return {}
    probes, latest = core.attached.of(Probes), StatementRecords(core.store, core.env).load()
    known, probes.closed = probes.closed, latest.closed
    if known != latest.closed:  # guard: P-8 test_statements_over_shards
        return None
    decided = [one for one in latest.of(core.record.table_id) if one.is_decided]
    return {share.shard: share for one in decided for share in one.shares}


@dataclass(frozen=True, slots=True)
class _Walk:
    """A shard that was read from its manifest on."""

    cut: ShardCut
    floors: FloorValues
    """From before its log was read."""

    def is_vouched(self, core: Core, after: FloorValues) -> bool:
        """False if floors read after its log show that entries of it were collected (G-7c)."""
        if after.wal <= self.cut.replay_after:
            return True
        core.log(self.cut.shard).seen = None
        return False


def _proved(
    core: Core,
    plan: ProbePlan,
    tips: Sequence[Position | None],
    floors: list[FloorValues],
) -> list[ShardCut] | None:
    """The cuts of the known shards that were not read; None if their floors refute one of them."""
    found = list(zip(plan.shards, tips, floors, strict=True))
    # guard: L-1 first test_many_shards_look
    if floors == plan.floors and all(tip == one.tip for one, tip, _ in found):
        return plan.cuts
    core.attached.of(Probes).keep(None)
    cuts, is_refuted = [], False
    for one, tip, marks in found:
        if tip is None:
            continue
        if one.is_refuted(marks, tip):
            core.log(one.site.shard).seen = None
            is_refuted = True
            continue
        if tip != one.tip or marks != one.floors:
            core.log(one.site.shard).saw(marks, tip)
        cuts.append(ShardCut.of(one.manifest, tip))
    return None if is_refuted else cuts


def _flushed(core: Core, choose: Choice, at: float) -> Snapshot:
    """A cut without the logs. Retries if the table's record moves: otherwise rows of an heir could
    be seen without older rows of its predecessor (C-11)."""
    number = core.known_number
    for tries in core.env.attempts(first_delay=0):
        shards = choose(core.shard_ids())
        cuts = [walk.cut for walk in _walked(core, shards, tail=False) if walk is not None]
        version = core.lake.open_base().version  # L-1: after every manifest
        latest = core.record_number()
        if latest == number:
            core.env.meters.add(SNAPSHOT_TRIES, tries)
            return _snapshot(core, version, "flushed", cuts, at)
        number = latest
    raise _restless(core)


def _restless(core: Core) -> SnapshotExpired:
    return SnapshotExpired(
        f"{core.uri}: its base or its record changed again and again while a read was"
        " planned; read again"
    )


def _walked(core: Core, shards: Sequence[UUID], *, tail: bool = True) -> list[_Walk | None]:
    return core.env.threads.map(
        lambda shard: _walk(core, shard, tail=tail), list(shards), workers=core.workers
    )


def pinned_snapshot(core: Core, pinned: Pinned, freshness: Freshness = "durable") -> Snapshot:
    """The cut that a checkpoint pins. One get for each shard's manifest, and a listing if the
    shard's log is needed."""
    check_freshness(freshness)

    def load(pin: ShardCut) -> ShardCut:
        log = core.log(pin.shard)
        manifest = log.manifests.load(Version(pin.manifest_version))
        if manifest is None:
            raise CheckpointNotFound(
                f"{log}: manifest {pin.manifest_version}, pinned by a checkpoint, is gone: the"
                " checkpoint was deleted, or expired and was collected; read at another one"
            )
        find_rivals(core, [manifest])
        if freshness != "durable":
            return structs.replace(pin, wal_through=pin.replay_after)
        if not pin.closed:
            log.current_site()  # it may have been moved since this handle last looked (S-3)
        return pin

    pins = [] if freshness == "base" else list(pinned.shards)
    cuts = core.env.threads.map(load, pins, workers=16)
    found = _snapshot(core, pinned.base_version, freshness, cuts, pinned.created)
    return replace(found, is_pinned=True)


def _snapshot(
    core: Core, base_version: int, freshness: Freshness, cuts: list[ShardCut], at: float
) -> Snapshot:
    """Sealed shards come last: the rows of a sealed shard are older than those of its heirs.

    A rival's rows come after those of the routing (X-3).
    """
    ordered, rivals = tuple(cuts), known_rivals(core)
    if rivals or any(cut.sealed for cut in cuts):
        ordered = tuple(sorted(cuts, key=lambda cut: (cut.sealed, cut.shard in rivals)))
    # An identity sharding lists no shards; those that overlap its own are rivals.
    listed = core.routed(()) if core.record.routing else None
    overlapping = frozenset(
        cut.shard
        for cut in cuts
        if cut.shard in rivals or (listed is not None and cut.shard not in listed)
    )
    return Snapshot(base_version, freshness, ordered, at, overlapping=overlapping)


def _walk(core: Core, shard: UUID, *, tail: bool) -> _Walk | None:
    log = core.log(shard)
    manifest, floors = log.state()
    if manifest is None:
        return None  # a folder without a manifest: a shard being created
    find_rivals(core, [manifest])
    through = manifest.replay_after
    if tail:
        through = Position(max(through, log.end(manifest, floors, vouched=False)[1]))
    return _Walk(ShardCut.of(manifest, through), floors)
