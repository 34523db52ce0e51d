"""What the simulated stores of one run share: objects, faults, and requests still under way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.scheduler import Actor, Scheduler
from simulator.strikes import Strikes
from weir.errors import StoreError
from weir.format.paths import is_log_folder
from weir.store.api import Blob, Bytes, Meta, ObjectExists, ObjectMissing

AWAY = "away"
"""The store cannot be reached from a machine."""
HOLE = "hole"
"""The store is not mounted on a machine, and the folder in its place still takes writes."""


@dataclass
class Faults:
    """Chance of each outcome per call; drawn from the seed, all zero in a healthy world."""

    refuse: float = 0.0
    """A write fails and says that it was not applied (also 409 and throttling)."""
    lose_after: float = 0.0
    """Applied, the answer is lost."""
    lose: float = 0.0
    """Not applied, the answer is lost."""
    late: float = 0.0
    """The answer is lost; applied at a later step, perhaps after everything else."""
    twice: float = 0.0
    """Applied twice; the first answer is given."""
    echo: float = 0.0
    """Applied twice; the second answer is given, as through a proxy that repeats."""
    slow: float = 0.0
    """Takes seconds to hours."""
    read_error: float = 0.0
    outage: float = 0.0
    """Chance per write that all calls of this process fail for a while."""
    orphan: float = 0.5
    """Chance that a write whose process died before it was applied is applied later."""

    def record(self) -> dict[str, float]:
        """As JSON-ready values."""
        return asdict(self)


@dataclass
class Late:
    """A request under way whose sender no longer waits."""

    due: int
    actor: Actor
    op: str
    path: str
    apply: Callable[[], Any]


@dataclass
class World:
    """What the simulated stores of a run share: scheduler, faults, requests under way."""

    scheduler: Scheduler
    rng: random.Random
    faults: Faults
    fired: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    late: list[Late] = field(default_factory=list)
    outages: dict[str, int] = field(default_factory=dict)
    paging: float = 0.0
    on_write: list[Callable[[Actor, str, str, Bytes], None]] = field(default_factory=list)
    """Called with (actor, op, path, data) right after a write was applied."""
    before_delete: list[Callable[[Actor, str], None]] = field(default_factory=list)
    before_replace: list[Callable[[Actor, str, bytes, bytes], None]] = field(default_factory=list)
    """Called with (actor, uri, old, new) when an object is about to be overwritten."""
    before_entry: list[Callable[[Actor], None]] = field(default_factory=list)
    """Called when a process is about to write an entry of a log."""
    hand: Callable[[Actor, str, bytes], bytes] = lambda _actor, _path, data: data
    """The bytes that a reader of (path, data) gets; they may report when they are freed."""
    healthy: bool = False
    writes: Counter[str] = field(default_factory=Counter)
    """Writes begun, by actor: the crash points of a script."""
    crash_at: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Actor to (n, "before" or "after"): it dies at its n-th write."""
    strikes: Strikes | None = None
    """Interrupts of threads that live on."""
    shelves: dict[str, Shelf] = field(default_factory=dict)
    """Every store of the run, by URI."""
    clocks: dict[str, float] = field(default_factory=dict)
    """By how much the clock of each store is off, by URI."""
    dated: bool = True
    """A put returns the time of the object, as file systems do and object stores do not."""
    mounts: dict[tuple[str, str], str] = field(default_factory=dict)
    """What a machine sees at a URI instead of the store that the others see there: AWAY, HOLE, or
    the URI of another store."""
    blinks: dict[tuple[str, str], list[tuple[int, int, str]]] = field(default_factory=dict)
    """By machine and URI: the first read affected, the number of reads, and what they see."""
    looks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Reads so far, by machine and URI."""
    confused: set[str] = field(default_factory=set)
    """Machines that ever saw another store than the others."""
    skew_max: float | None = None
    """A request whose sender's wall clock is further from the store's is refused, as by S3."""

    def shelf(self, uri: str) -> Shelf:
        """The store at that URI, empty when it is met for the first time."""
        if uri not in self.shelves:
            self.shelves[uri] = Shelf(self, uri)
        return self.shelves[uri]

    def seen_by(self, actor: Actor, uri: str) -> Shelf:
        """What is at that URI for that process; `StoreError` when nothing answers."""
        found = self.mounts.get((machine_of(actor), uri)) if self.mounts else None
        if found is None:
            return self.shelf(uri)
        self.confused.add(machine_of(actor))
        if found == AWAY:
            raise StoreError(f"{uri}: the simulated store is not to be reached from here")
        if found == HOLE:
            return self.shelf(f"hole://{machine_of(actor)}-{uri.rpartition('/')[2]}")
        return self.shelf(found)

    def look(self, actor: Actor, uri: str) -> None:
        """Count one more read of a store; a blink may begin or end with it."""
        place = machine_of(actor), uri
        self.looks[place] += 1
        was = self.looks[place] - 1
        for first, many, view in self.blinks.get(place, ()):
            if was == first + many:
                self.mounts.pop(place, None)
            elif was == first:
                self.mounts[place] = view
                self.fired["blinked"] += 1
                self.scheduler.note(place[0], f"sees {view} at {uri} for {many} reads")

    def deliver(self, *, everything: bool = False) -> None:
        """Apply the late requests that are due."""
        if not self.late:
            return
        step = self.scheduler.step
        due = [late for late in self.late if everything or late.due <= step]
        if not due:
            return
        self.late = [late for late in self.late if not (everything or late.due <= step)]
        for late in due:
            try:
                late.apply()
                outcome = "applied late"
            except (ObjectExists, ObjectMissing):
                outcome = "refused late"
            self.fired[outcome] += 1
            self.scheduler.note(late.actor.name, f"{late.op} {short(late.path)}: {outcome}")


def machine_of(actor: Actor) -> str:
    """The machine a process runs on; a restarted process stays on it."""
    return actor.name.rstrip("'")


class Shelf:
    """The objects of one store."""

    def __init__(self, world: World, uri: str) -> None:
        self.world = world
        self.uri = uri
        self.blobs: dict[str, Blob] = {}
        self.etags = 0

    @property
    def now(self) -> float:
        """The clock of this store."""
        return self.world.scheduler.now + self.world.clocks.get(self.uri, 0.0)

    def put(self, actor: Actor, op: str, path: str, data: Bytes) -> str:
        """Create or replace, and notify the watchers."""
        self.etags += 1
        etag = f"{self.uri}/{self.etags}"
        body = bytes(data)
        old = self.blobs.get(path)
        if old is not None:
            for check in self.world.before_replace:
                check(actor, f"{self.uri}/{path}", old.data, body)
        self.blobs[path] = Blob(body, Meta(path, len(body), self.now, etag))
        for watch in self.world.on_write:
            watch(actor, op, f"{self.uri}/{path}", body)
        return etag

    def names(self, prefix: str) -> list[str]:
        """Sorted names below a folder."""
        lead = prefix + "/" if prefix else ""
        return sorted(path for path in self.blobs if path.startswith(lead))


def split_folder(uri: str) -> tuple[str, str]:
    """A store's disk or bucket, and the folder of a log in it with a slash; else nothing."""
    disk, _, name = uri.rpartition("/")
    return (disk, f"{name}/") if is_log_folder(name) else (uri, "")


def short(path: str) -> str:
    """A path as people read it: bit-reversed names as numbers, long ids cut."""
    parts = []
    for part in path.split("/"):
        stem, dot, suffix = part.partition(".")
        if len(stem) == 64 and set(stem) <= {"0", "1"}:
            parts.append(f"{int(stem[::-1], 2)}{dot}{suffix}")
        elif len(stem) == 36 and stem.count("-") == 4:
            parts.append(stem[:4])
        elif len(stem) == 20 and stem.isdigit():
            n = int(stem)
            parts.append(str(n if n < 1 << 40 else (1 << 64) - 1 - n) + dot + suffix)
        else:
            parts.append(part)
    return "/".join(parts).removeprefix("_mem_wal/")
