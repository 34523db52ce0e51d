"""A run: a plan drawn from a seed, the processes that follow it, and the judge's verdict."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from uuid import UUID

import pyarrow as pa

from simulator.effects import BaseTruth
from simulator.env import make_actor
from simulator.holdings import Ledger
from simulator.machines import Machines
from simulator.model_fragments import FragmentLake
from simulator.model_lake import ModelLake
from simulator.oracles import Judge
from simulator.places import SimPlaces
from simulator.scheduler import POLICIES, Actor, Scheduler, Settings, Stuck
from simulator.strikes import Strikes
from simulator.truth import Violation
from simulator.world import Faults, World
from weir.env import Limits
from weir.format.schema import FIELD_ID, TableSchema, table_schema
from weir.log.site import ShardSite
from weir.store.open import open_store
from weir.store.retry import RetryingStore

SHARD = UUID(int=0x5EED, version=4)
COLUMNS = ("k", "w", "c", "i", "n")
TABLE = "s3://main"
WAL = "s3://wal"
FINAL_CALLS_MAX = 400
"""Store calls that recovery and one put may take on a healthy store, besides one for each entry
(P)."""

COPY_CALLS_MAX = 600
"""Additional calls for each clone that is finished and read."""


@dataclass
class Role:
    """One process of the plan; killed and started again as the plan says."""

    kind: str
    sessions: int = 2
    ops: int = 6
    threads: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    kills: list[int] = field(default_factory=list)
    """Steps at which it dies; it starts again each time."""
    boot_offset: float = 0.0
    wall_offset: float = 0.0
    pauses: list[list[int]] = field(default_factory=list)
    """Of its machine: before which of its entries, for how many steps, and how many steps later its
    wall clock is corrected."""
    unmounts: list[tuple[int, int, str, str]] = field(default_factory=list)
    """The first step, the number of steps, the URI, and what its machine sees there instead."""
    blinks: list[tuple[int, int, str, str]] = field(default_factory=list)
    """The same counted in reads of that URI: the first read, and the number of reads."""


@dataclass
class Plan:
    """Everything a run does, as values; what `--plan` reads and shrinking cuts down."""

    seed: int
    scenario: str
    keyed: bool
    wal_apart: bool
    settings: dict[str, Any]
    faults: dict[str, float]
    paging: float
    fence_ttl: float
    """Of every writer; collection keeps the first entry of an epoch at least twice as long."""
    wal_only: bool
    """No writer has a MemTable, and compaction folds the log."""
    roles: list[Role]
    moves: bool = False
    """Each writer opens with its own choice of a place for the log, which moves between stores."""
    is_story: bool = False
    """Where or what the table is changes; every process opens it as users do."""
    edge: dict[str, Any] = field(default_factory=dict)
    """What an edge scenario draws in addition (`ADJUST` in simulate.py)."""
    places: list[str | None] = field(default_factory=lambda: [None, TABLE, WAL, f"{WAL}-2"])
    """Where writers want the log, if it moves; None: where it is."""
    wal_uri: str | None = None
    """Where the table's record puts the log."""
    clocks: dict[str, float] = field(default_factory=dict)
    """By how much the clocks of stores are off."""
    skew_max: float | None = None
    """The stores refuse requests whose date is further off than this."""
    dated: bool = True
    """The stores answer a put with its date; if they do not, no connection survives a pause."""
    fence_retention: float = 0.0
    """The least time for which collection keeps first entries."""

    @property
    def is_mixed(self) -> bool:
        """Writers with and without a MemTable, and native ones, take turns on one shard."""
        return self.scenario == "modes"

    @property
    def has_fragments(self) -> bool:
        """The base is changed bypassing the log; Lance is modelled fragment by fragment."""
        return self.scenario in {"strangers", "loads"}

    def to_record(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @staticmethod
    def from_record(record: dict[str, Any]) -> Plan:
        """Back from JSON."""
        values = dict(record)
        values["roles"] = [Role(**role) for role in record["roles"]]
        return Plan(**values)


@dataclass
class Outcome:
    """What became of a run."""

    plan: Plan
    failure: BaseException | None
    digest: str
    steps: int
    fired: Counter[str]
    counts: Counter[str]
    calls: int
    notes: list[tuple[int, str, str]]
    writes: Counter[str]

    @property
    def letter(self) -> str:
        """The letter of the broken promise; empty when all held."""
        if self.failure is None:
            return ""
        return (
            self.failure.letter
            if isinstance(self.failure, Violation)
            else ("P" if isinstance(self.failure, Stuck) else "T")
        )


MORE: dict[str, pa.Field] = {
    "vectors": pa.field("v", pa.list_(pa.float32(), 1)),
    "padding": pa.field("s", pa.string()),
    "kept": pa.field("x", pa.int64()),
}
"""Additional columns, where rows are searched, vary in size, or are updated in part."""


def schema_of(*, keyed: bool, more: str | None = None) -> TableSchema:
    """Five numbers: key, session, batch, index, size; and perhaps one more column."""
    fields = [
        pa.field(name, pa.int64(), name != "k", {FIELD_ID: str(number).encode()})
        for number, name in enumerate(COLUMNS)
    ]
    if more is not None:
        fields.append(MORE[more].with_metadata({FIELD_ID: str(len(fields)).encode()}))
    return table_schema(pa.schema(fields), ("k",) if keyed else (), len(fields) - 1)


SCHEMAS = {
    (keyed, more): schema_of(keyed=keyed, more=more)
    for keyed in (True, False)
    for more in (None, *MORE)
}


class Run:
    """One simulated history."""

    def __init__(
        self,
        plan: Plan,
        roles: Mapping[str, Callable[[Run, Actor, Role], None]],
        setup: Callable[[Run, Actor], None] = lambda _run, _actor: None,
    ) -> None:
        self.plan = plan
        self.schema = SCHEMAS[plan.keyed, plan.edge.get("column")]
        self.limits = Limits(**plan.edge.get("limits", {}))
        self.scheduler = Scheduler(plan.seed, Settings(**plan.settings))
        self.world = World(
            self.scheduler,
            random.Random(f"faults/{plan.seed}"),
            Faults(**plan.faults),
            paging=plan.paging,
            clocks=plan.clocks,
            dated=plan.dated,
            skew_max=plan.skew_max,
        )
        self.world.strikes = Strikes(
            self.scheduler,
            random.Random(f"strikes/{plan.seed}"),
            float(plan.edge.get("strikes", 0.0)),
            waits=bool(plan.edge.get("waits")),
        )
        self.machines = Machines(self.scheduler, self.world)
        self.world.before_entry.append(self.machines.on_entry)
        self.shelf = self.world.shelf(TABLE)
        self.wal_shelf = self.world.shelf(WAL) if plan.wal_apart else self.shelf
        self.judge = Judge(self.scheduler, self.shelf, self.wal_shelf.uri, keyed=plan.keyed)
        self.ledger = Ledger(self.limits.read_bytes)
        """How much of the log each process holds, where that is watched."""
        self.sessions = 0
        self.copies: dict[str, Any] = {}
        """Clones by URI, as `simulator.copies` keeps them."""
        self.moments: dict[UUID, Any] = {}
        """Checkpoints to restore, and what the table held then."""
        self.stream_offset = 0
        """The last batch of the stream that its driver knows to have succeeded."""
        self.bookmarks: dict[str, tuple[str, Any]] = {}
        """How far the consumers of the feed have read, and what they have of the entry after it, by
        their name."""
        self.queries: dict[str, Any] = {}
        """The checkpoints of Spark's queries, by their name."""
        self.edge_judge: Any = None
        """The additional judge of an edge scenario."""
        self._roles = roles
        self._setup = setup
        self._starts = 0
        self._kills: list[tuple[int, Role, Actor]] = []

    # -- what roles use --------------------------------------------------------------------------

    def actor(self, name: str, seed: str, **offsets: float) -> Actor:
        """A process of this world."""
        places = SimPlaces(self.world, self.schema, has_fragments=self.plan.has_fragments)
        if self.plan.edge.get("twins"):
            seed = "twins"  # all processes draw the same values
        places.actor = make_actor(
            self.scheduler, name, seed, places=places, limits=self.limits, **offsets
        )
        return places.actor

    def store(self, actor: Actor) -> RetryingStore:
        """The table's store as that process sees it, retries included."""
        return cast("RetryingStore", open_store(TABLE, env=actor.env))

    def site(self, actor: Actor, shard: UUID = SHARD) -> ShardSite:
        """The shard as that process sees it."""
        store = self.store(actor)
        wal = store
        if self.wal_shelf is not self.shelf:
            wal = cast("RetryingStore", open_store(WAL, env=actor.env))
        return ShardSite(store, wal, shard, actor.env)

    def lake(self, actor: Actor) -> ModelLake:
        """The Lance side as that process sees it."""
        assert actor.env.places is not None, "a process of this world"
        lake: ModelLake = actor.env.places.lake(TABLE)
        return lake

    def fragments(self, actor: Actor) -> FragmentLake:
        """The same in a world with fragments."""
        lake = self.lake(actor)
        assert isinstance(lake, FragmentLake), "a world with fragments"
        return lake

    @property
    def judges_own_reads(self) -> bool:
        """False once rows may come and go without the writer."""
        return not self.moments and self.judge.base is None

    def next_session(self) -> int:
        """A number for a writer's session."""
        self.sessions += 1
        return self.sessions

    def note(self, actor: Actor, text: str) -> None:
        """A line of history."""
        self.scheduler.note(actor.name, text)

    # -- running ---------------------------------------------------------------------------------

    def execute(
        self, final: Callable[[Run, Actor], None], live: Callable[[], None] | None = None
    ) -> Outcome:
        """Set up, run the plan's roles (or `live`), then judge on a healthy store."""
        failure: BaseException | None = None
        try:
            self._prepare()
            (live or self._live)()
            self.world.healthy = True
            self.world.outages.clear()
            self.world.mounts.clear()
            self.world.deliver(everything=True)
            self.scheduler.settings.policy = "uniform"
            self._final(final)
            self.judge.finish()
        except BaseException as error:
            assert self.world.strikes is not None, "made with the world"
            pressed = isinstance(error, KeyboardInterrupt | SystemExit)
            if pressed and not self.world.strikes.is_ours(error):
                raise  # from the user who runs the simulation
            failure = error
        digest = hashlib.sha256(repr(self.scheduler.notes).encode()).hexdigest()[:16]
        return Outcome(
            self.plan,
            failure,
            digest,
            self.scheduler.step,
            self.world.fired,
            self.judge.counts,
            sum(self.world.calls.values()),
            self.scheduler.notes,
            self.world.writes,
        )

    def _live(self) -> None:
        for role in self.plan.roles:
            self._start(role, 0)
        self.scheduler.on_step.append(self._kill_due)
        self.scheduler.on_step.append(self.machines.on_step)
        self.scheduler.run()

    def _prepare(self) -> None:
        self.world.healthy = True
        maker = self.actor("setup", "setup")
        if self.plan.has_fragments:
            read_version = self.fragments(maker).read_version
            self.judge.base = BaseTruth(self.plan.keyed, read_version)
        self.lake(maker).create_base()
        self._setup(self, maker)
        self.world.healthy = False

    def _start(self, role: Role, incarnation: int) -> None:
        self._starts += 1
        number = self.plan.roles.index(role)
        name = f"{role.kind}{number}" + "'" * incarnation
        actor = self.actor(
            name,
            f"actor/{self.plan.seed}/{number}/{incarnation}",
            boot_offset=role.boot_offset * (incarnation + 1),
            wall_offset=role.wall_offset,
        )
        run = self._roles[role.kind]
        machine = name.rstrip("'")
        if not incarnation:
            for pause in role.pauses:
                self.machines.pause(machine, *pause)
            for unmount in role.unmounts:
                self.machines.unmount(machine, *unmount)
            for first, many, uri, view in role.blinks:
                self.world.blinks.setdefault((machine, uri), []).append((first, many, view))

        def body() -> None:
            try:
                run(self, actor, role)
            finally:
                if not actor.dead:
                    self.scheduler.kill(actor)

        self.scheduler.spawn(actor, body, name=name)
        if incarnation < len(role.kills):
            self._kills.append((role.kills[incarnation], role, actor))

    def _kill_due(self) -> None:
        for item in list(self._kills):
            step, role, actor = item
            if self.scheduler.step >= step:
                self._kills.remove(item)
                self._restart(actor, role)

    def _restart(self, actor: Actor, role: Role) -> None:
        if actor.dead:
            return
        self.world.fired["kill"] += 1
        self.scheduler.kill(actor)
        self._start(role, actor.name.count("'") + 1)

    def _final(self, final: Callable[[Run, Actor], None]) -> None:
        actor = self.actor("final", f"final/{self.plan.seed}")
        before = sum(self.world.calls.values())
        entries = sum(len(truth.log) for truth in self.judge.shards.values())
        self.scheduler.spawn(actor, lambda: final(self, actor), name="final")
        self.scheduler.run()
        calls = sum(self.world.calls.values()) - before
        tables = len({path.rpartition("/")[0] for path in self.shelf.blobs if "_gen_" in path})
        more = COPY_CALLS_MAX * (
            len(self.copies) + len(self.judge.routings) * len(self.judge.shards)
        )
        if calls > FINAL_CALLS_MAX + 4 * entries + 10 * tables + more:
            raise Violation("P", f"recovery on a healthy store took {calls} calls")


def draw_settings(rng: random.Random) -> dict[str, Any]:
    """How this seed is scheduled."""
    policy = rng.choice(POLICIES)
    return {
        "policy": policy,
        "stay": rng.choice((0.0, 0.3, 0.7)),
        "lock_yield": rng.choice((0.0, 0.05, 0.3)),
        "step_seconds": rng.choice((0.001, 0.01, 0.1, 2.0)),
        "change_points": rng.choice((1, 3, 8)),
        "stall_chance": rng.choice((0.005, 0.02, 0.08)),
    }


def draw_faults(rng: random.Random) -> dict[str, float]:
    """How this seed's store misbehaves: nothing, one thing, or a bit of everything."""
    faults = Faults()
    kinds = (
        "refuse",
        "lose_after",
        "lose",
        "late",
        "twice",
        "echo",
        "slow",
        "read_error",
        "outage",
    )
    style = rng.random()
    if style < 0.15:
        chosen: tuple[str, ...] = ()
    elif style < 0.5:
        chosen = (rng.choice(kinds),)
    else:
        chosen = tuple(kind for kind in kinds if rng.random() < 0.6)
    for kind in chosen:
        top = 0.03 if kind in {"outage", "slow"} else 0.15
        setattr(faults, kind, rng.choice((0.01, 0.04, top)))
    return faults.record()


def draw_config(rng: random.Random) -> dict[str, Any]:
    """Settings of one writer, tiny on purpose."""
    buffer = rng.choice((1, 200, 1000, 10 << 20))
    return {
        "enable_memtable": rng.random() < 0.75,
        "durable_write": rng.random() < 0.7,
        "max_wal_buffer_size": buffer,
        "max_wal_flush_interval": rng.choice((0.0, 0.05, 1.0)),
        "max_memtable_size": rng.choice((1, 500, 256 << 20)),
        "max_memtable_rows": rng.choice((1, 3, 8, 100_000)),
        "max_memtable_batches": rng.choice((1, 2, 5, 8_000)),
        # Not drawn, so that the seeds of earlier finds still give their histories.
        "max_memtable_age": {1: 0.5, 200: 20.0, 1000: None}.get(buffer, 300.0),
        "max_unflushed_memtable_bytes": max(buffer, rng.choice((400, 3000, 1 << 30))),
        "stats_log_interval": 0,
    }


def draw_role(rng: random.Random, kind: str) -> Role:
    """One process."""
    sessions = {"fencer": rng.randint(2, 4)}.get(kind, rng.randint(1, 2))
    role = Role(
        kind,
        sessions=sessions,
        ops=rng.randint(1, 2) if kind == "fencer" else rng.randint(2, 8),
        threads=rng.choice((1, 1, 2, 3)),
        config=draw_config(rng),
        boot_offset=rng.choice((0.0, 1e3, 1e6)),
        wall_offset=rng.choice((0.0, 0.0, -3e8, 3600.0, 3e8)),
    )
    if kind != "reader" and rng.random() < 0.5:
        role.kills = sorted(rng.randrange(5, 400) for _ in range(rng.randint(1, 2)))
    return role
