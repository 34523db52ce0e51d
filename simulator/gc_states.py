"""States and steps of the model of collection; `gc_model` explores them and says what must hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from simulator.models import Broken

T = TypeVar("T")

NEVER = math.inf


@dataclass(frozen=True)
class Bounds:
    """What to explore, and which of the two locks of G-7 are on."""

    roles: tuple[str, ...] = ("w11", "w11")
    """Writers: weir's `w` or a native one `n`, then how many appends and how many flushes."""
    collectors: int = 1
    ticks: int = 0
    retention: float = NEVER
    """G-7a: ticks for which the first entries of epochs stay; 0 turns this lock off."""
    fence_ttl: float = 0
    """G-7b: ticks for which a proof of ownership holds; NEVER turns this lock off."""
    silent_claims: bool = True
    """Keep the entries written around a claim that left no entry."""
    states_max: int = 5_000_000


class Entry(NamedTuple):
    """One object of the log; `row` is 0 for a fence."""

    position: int
    epoch: int
    row: int
    time: int


class Writer(NamedTuple):
    """One process that writes."""

    native: bool
    pc: str = "start"
    epoch: int = 0
    version: int = 0
    known: int = 0
    next: int = 0
    replay_after: int = 0
    row: int = 0
    rows: tuple[int, ...] = ()
    appends: int = 0
    flushes: int = 0
    proof: int = 0


class Collector(NamedTuple):
    """One process that collects."""

    pc: str = "start"
    listed: tuple[Entry, ...] = ()
    doomed: tuple[int, ...] = ()


class State(NamedTuple):
    """Everything: the store, the processes, and what was promised to callers."""

    now: int
    version: int
    epoch: int
    replay_after: int
    last_seen: int
    floor: int
    log: tuple[Entry, ...]
    writers: tuple[Writer, ...]
    collectors: tuple[Collector, ...]
    rows: int
    acked: tuple[tuple[int, int], ...]
    """(position, row) of every acknowledgement given."""
    flushed: frozenset[int]


Step = tuple[str, State]


def first_state(bounds: Bounds) -> State:
    """An empty shard that nobody has claimed."""
    writers = tuple(
        Writer(native=role[0] == "n", appends=int(role[1]), flushes=int(role[2]))
        for role in bounds.roles
    )
    idle = tuple(Collector() for _ in range(bounds.collectors))
    return State(0, 0, 0, 0, 0, 0, (), _alike(writers), idle, 0, (), frozenset())


def steps(state: State, bounds: Bounds) -> Iterator[Step]:
    """Every step some process can take now."""
    for i, writer in enumerate(state.writers):
        for name, after, changed in _writer_steps(state, writer, bounds):
            writers = (*state.writers[:i], changed, *state.writers[i + 1 :])
            kind = "native" if writer.native else "writer"
            yield f"{kind}{_of(changed.epoch)} {name}", after._replace(writers=_alike(writers))
    for i, collector in enumerate(state.collectors):
        for name, after, moved in _collector_steps(state, collector, bounds):
            collectors = (*state.collectors[:i], moved, *state.collectors[i + 1 :])
            yield f"collector {name}", after._replace(collectors=_alike(collectors))
    if state.now < bounds.ticks:
        yield "time passes", state._replace(now=state.now + 1)


def _of(epoch: int) -> str:
    return f" of epoch {epoch}" if epoch else ""


def _alike(processes: tuple[T, ...]) -> tuple[T, ...]:
    """Sort the processes: states that differ only in their order are one state."""
    return tuple(sorted(processes))  # type: ignore[type-var]


WriterStep = tuple[str, State, Writer]


def _writer_steps(s: State, w: Writer, bounds: Bounds) -> Iterator[WriterStep]:
    match w.pc:
        case "start":
            known = max(s.last_seen, s.replay_after) if w.native else _known(s)
            yield "reads the manifest", s, w._replace(pc="read", version=s.version, known=known)
        case "read" if w.native:
            # Claim and probe are one step: a native writer that sleeps between the two can damage
            # the log without any collector; this model checks only what collection adds.
            for name, after, claimed in _claim(s, w, "claimed"):
                if claimed.pc == "claimed":
                    yield from _native_probe(after, claimed)
                else:
                    yield name, after, claimed
        case "read":
            tip = _tip(s, w.known)
            yield f"finds the tip {tip}", s, w._replace(pc="probed", next=tip + 1)
        case "probed":
            yield from _claim(s, w, "claimed")
        case "claimed" if w.replay_after >= w.next:
            tip = _tip(s, max(w.replay_after, w.known))
            yield f"finds the tip {tip} again", s, w._replace(next=tip + 1)
        case "claimed" | "aimed":
            yield from _fence(s, w)
        case "fenced":
            yield from _look_again(s, w)
        case "looked":
            if w.next <= max(w.replay_after, s.floor):
                yield "fence came too late", s, w._replace(pc="dead")
            else:
                yield "reads the floor", s, w._replace(pc="replay")
        case "replay":
            yield from _replay(s, w)
        case "serving":
            yield from _serve(s, w)
        case "put":
            yield from _acknowledge(s, w, bounds)
        case _:
            return


def _known(s: State) -> int:
    return max(s.floor, s.last_seen, s.replay_after)


def _tip(s: State, known: int) -> int:
    present = {entry.position for entry in s.log}
    while known + 1 in present:
        known += 1
    return known


def _claim(s: State, w: Writer, pc: str) -> Iterator[WriterStep]:
    if s.version != w.version:
        yield "lost the claim", s, w._replace(pc="start")
        return
    after = s._replace(version=s.version + 1, epoch=s.epoch + 1)
    changed = w._replace(
        pc=pc,
        epoch=after.epoch,
        replay_after=s.replay_after,
        known=max(w.known, s.last_seen),
        proof=s.now,
    )
    yield f"claims epoch {after.epoch}", after, changed


def _native_probe(s: State, w: Writer) -> Iterator[WriterStep]:
    """Probe upwards from the entry at L, else list; a shard's first claim writes no sentinel."""
    present = [entry.position for entry in s.log]
    tip = _tip(s, w.known) if w.known in present else max(present, default=0)
    pc = "aimed" if w.epoch > 1 else "serving"
    name = f"claims epoch {w.epoch} and finds the tip {tip}"
    yield name, s, w._replace(pc=pc, next=tip + 1)


def _fence(s: State, w: Writer) -> Iterator[WriterStep]:
    if any(entry.position == w.next for entry in s.log):
        if s.epoch > w.epoch:
            yield "meets an entry and is fenced", s, w._replace(pc="dead")
        else:
            yield "meets an entry", s, w._replace(next=w.next + 1)
        return
    pc = "replay" if w.native else "fenced"
    yield f"puts its fence at {w.next}", _put(s, w, 0), w._replace(pc=pc)


def _put(s: State, w: Writer, row: int) -> State:
    entry = Entry(w.next, w.epoch, row, s.now)
    return s._replace(log=tuple(sorted((*s.log, entry))))


def _look_again(s: State, w: Writer) -> Iterator[WriterStep]:
    """F-4: before the fence landed, others may have flushed past it and collected entries there."""
    if s.epoch > w.epoch:
        yield "sees a newer epoch", s, w._replace(pc="dead")
        return
    changed = w._replace(pc="looked", replay_after=s.replay_after, proof=s.now)
    yield "reads the manifest again", s, changed


def _replay(s: State, w: Writer) -> Iterator[WriterStep]:
    found = {entry.position: entry for entry in s.log}
    rows = []
    for position in range(w.replay_after + 1, w.next):
        entry = found.get(position)
        if entry is None and w.native:
            break  # to pylance the first missing entry is the end of the log
        if entry is None:
            if s.epoch > w.epoch:
                yield "misses an entry and is fenced", s, w._replace(pc="dead")
                return
            raise Broken("replay", f"epoch {w.epoch} misses the entry at {position}")
        if entry.epoch > w.epoch:
            yield "meets a newer epoch", s, w._replace(pc="dead")
            return
        if entry.row:
            rows.append(entry.row)
    yield "replays", s, w._replace(pc="serving", rows=tuple(rows), next=w.next + 1)


def _serve(s: State, w: Writer) -> Iterator[WriterStep]:
    if w.appends:
        taken = any(entry.position == w.next for entry in s.log)
        if taken and w.native and s.epoch == w.epoch:
            yield "steps over a stranger", s, w._replace(next=w.next + 1)
        elif taken:
            yield "collides and ends", s, w._replace(pc="dead")
        else:
            row = s.rows + 1
            after = _put(s, w, row)._replace(rows=row)
            yield f"puts row {row} at {w.next}", after, w._replace(pc="put", row=row)
    if w.flushes:
        if s.epoch > w.epoch:
            yield "is fenced at its flush", s, w._replace(pc="dead")
        else:
            after = s._replace(
                version=s.version + 1,
                replay_after=max(s.replay_after, w.next - 1),
                last_seen=max(s.last_seen, w.next - 1),
                flushed=s.flushed | set(w.rows),
            )
            yield f"flushes through {w.next - 1}", after, w._replace(flushes=w.flushes - 1)


def _acknowledge(s: State, w: Writer, bounds: Bounds) -> Iterator[WriterStep]:
    if not w.native and s.now - w.proof >= bounds.fence_ttl:
        if s.epoch > w.epoch:
            yield "finds itself fenced", s, w._replace(pc="dead")
            return
        w = w._replace(proof=s.now)
    if any(position == w.next for position, _ in s.acked):
        raise Broken("twice", f"position {w.next} is acknowledged twice")
    changed = w._replace(
        pc="serving", next=w.next + 1, rows=(*w.rows, w.row), appends=w.appends - 1, row=0
    )
    yield f"acknowledges {w.next}", s._replace(acked=(*s.acked, (w.next, w.row))), changed


CollectorStep = tuple[str, State, Collector]


def _collector_steps(s: State, c: Collector, bounds: Bounds) -> Iterator[CollectorStep]:
    match c.pc:
        case "start" if s.log:
            yield "lists the log", s, c._replace(pc="listed", listed=s.log)
        case "listed":
            below = [entry.position for entry in c.listed if entry.position < s.replay_after]
            if not below:
                yield "finds nothing", s, Collector("done")
                return
            kept = _kept(c.listed, s, bounds)
            doomed = tuple(p for p in below if p not in kept)
            after = s._replace(floor=max(s.floor, below[-1]))
            yield (
                f"reads R and raises the floor to {after.floor}",
                after,
                Collector("deleting", (), doomed),
            )
        case "deleting":
            if not c.doomed:
                yield "is done", s, Collector("done")
                return
            position, *left = c.doomed
            if position >= s.replay_after:
                raise Broken("deletes", f"{position} is not below R {s.replay_after}")
            log = tuple(entry for entry in s.log if entry.position != position)
            yield f"deletes {position}", s._replace(log=log), Collector("deleting", (), tuple(left))
        case _:
            return


def _kept(listed: tuple[Entry, ...], s: State, bounds: Bounds) -> set[int]:
    """Positions that G-7a keeps while young: first entries, and entries around a silent claim.

    Only the manifest, which is read after the listing, knows of claims after the listing's end.
    """
    kept: set[int] = set()
    for i, entry in enumerate(listed):
        first = i == 0 or listed[i - 1].epoch < entry.epoch
        later = next((e.epoch for e in listed[i + 1 :] if e.epoch > entry.epoch), s.epoch)
        silent = bounds.silent_claims and later > entry.epoch + 1
        if (first or silent) and s.now - entry.time < bounds.retention:
            kept.add(entry.position)
    return kept
