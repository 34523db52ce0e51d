"""The protocol of a statement over two shards as a small model, all of whose interleavings run.

Statements (`s`), a stream's writer that looks before it writes (`w`), a native writer that looks at
nothing (`n`), readers with a handle that knows the marks (`r`) and one that knows nothing (`c`),
and whoever finishes what is open (`f`). Each step is one request to the store; a claim is one step,
since `simulator.gc_model` shows that claims hold. A process that dies is one that is not scheduled
any more, so every state is also one in which any of them died.

One key in each shard. What must hold in every state:
  atomic     a read sees a statement in both shards or in none
  order      of each key, whoever looked before it wrote saw the write right before its own
  value      a read finds the value that this order says
  kept       what a read has shown, or a statement has told, every later read shows
  once       the rows of a statement are in a log at most once, and only after it was decided

`python -m simulator.statement_model --help`; `explore(roles, plant=...)` from code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from simulator.models import Broken, report, visit_all

SHARDS: Final = (0, 1)
PLANTS: Final = (
    "check before the fence",
    "apply before it is decided",
    "decide after an abort",
    "read without starting over",
    "marks after the claims",
    "claim without a look at the chain",
    "apply over what others wrote since",
    "propose beside an open one",
    "apply twice",
    "done before all is applied",
)
"""Faults that can be planted; each must break a property."""


class Entry(NamedTuple):
    """One entry of a log."""

    by: str
    """Who wrote it."""
    saw: str | None = None
    """Whose row the writer saw before; None: it did not look."""
    is_fence: bool = False
    has_row: bool = True
    """False where a statement leaves out a key that others wrote since it was checked."""


class Open(NamedTuple):
    """A statement in the chain."""

    name: str
    state: str = "proposed"
    at: tuple[int, int] = (0, 0)
    """The position at which each shard was checked."""


class Chain(NamedTuple):
    """The latest record."""

    number: int = 0
    open: tuple[Open, ...] = ()
    closed: int = 0
    """How many statements that were decided are done."""

    def find(self, name: str) -> Open | None:
        """The open statement of that name."""
        return next((one for one in self.open if one.name == name), None)

    def put(self, one: Open) -> Chain:
        """The next record, with that statement in that state."""
        rest = tuple(other for other in self.open if other.name != one.name)
        return Chain(self.number + 1, (*rest, one), self.closed)

    def drop(self, name: str, *, done: bool) -> Chain:
        """The next record, without that statement."""
        rest = tuple(other for other in self.open if other.name != name)
        return Chain(self.number + 1, rest, self.closed + done)


class State(NamedTuple):
    """Everything in the store, and where each process is."""

    logs: tuple[tuple[Entry, ...], ...] = ((), ())
    owners: tuple[str, str] = ("", "")
    marks: tuple[int, int] = (0, 0)
    """Of each shard, two for each statement: even while one may be open, odd when it is over."""
    chain: Chain = Chain()
    decided: tuple[tuple[str, tuple[int, int], tuple[str, ...]], ...] = ()
    """For the judge: every statement ever decided, where it was checked, and what it saw."""
    shown: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    at: tuple[tuple[Any, ...], ...] = ()
    """Of each process its place in its program, and what it knows."""


Known = tuple[Any, ...]
"""A process: its place in its program, then what it knows."""
Steps = Iterator[tuple[str, State, Known]]
"""The name of a step, and the state and the process after it."""


# -- the store -----------------------------------------------------------------------------------


def claimed(s: State, shard: int, who: str) -> State:
    """The shard is `who`'s: a fence is in its log."""
    return appended(
        s._replace(owners=_with(s.owners, shard, who)), shard, Entry(who, is_fence=True)
    )


def appended(s: State, shard: int, entry: Entry) -> State:
    """That entry is the last of the shard's log."""
    return s._replace(logs=_with(s.logs, shard, (*s.logs[shard], entry)))


def marked(s: State, shard: int, mark: int) -> State:
    """The shard's mark is at least that."""
    return s._replace(marks=_with(s.marks, shard, max(mark, s.marks[shard])))


def _with(values: Known, index: int, value: object) -> Any:
    return (*values[:index], value, *values[index + 1 :])


# -- what is true --------------------------------------------------------------------------------


def order(
    s: State, shard: int, through: int, statements: frozenset[str]
) -> list[tuple[float, str]]:
    """The writes of the shard's key: those of `statements` right after they were checked."""
    found: list[tuple[float, str]] = [
        (position, entry.by)
        for position, entry in enumerate(s.logs[shard][:through], 1)
        if not entry.is_fence and not entry.by.startswith("s")
    ]
    found += [(at[shard] + 0.5, name) for name, at, _ in s.decided if name in statements]
    return sorted(found)


def before(s: State, shard: int, position: float) -> str:
    """Who wrote the shard's key last before that position."""
    every = frozenset(name for name, _, _ in s.decided)
    return next((by for at, by in reversed(order(s, shard, 99, every)) if at < position), "")


def remaining(s: State, shard: int, one: Open, through: int, plant: str) -> bool:
    """Whether the statement's row still counts: nobody else wrote since it was checked."""
    if plant == "apply over what others wrote since":
        return True
    since = s.logs[shard][one.at[shard] : through]
    return not any(not e.is_fence and e.has_row and e.by != one.name for e in since)


def is_applied(s: State, shard: int, name: str, through: int = 99) -> bool:
    """Whether the statement's entry is in the shard's log."""
    return any(e.by == name and not e.is_fence for e in s.logs[shard][:through])


def value(s: State, shard: int, through: int, virtual: tuple[Open, ...]) -> str:
    """What a read finds: the last row in the log, under what is decided and not yet there."""
    for one in virtual:
        if not is_applied(s, shard, one.name, through) and remaining(s, shard, one, through, ""):
            return one.name
    rows = [e.by for e in s.logs[shard][:through] if not e.is_fence and e.has_row]
    return rows[-1] if rows else ""


def check(s: State) -> None:
    """Raise `Broken` unless the log keeps every property."""
    known = {name for name, _, _ in s.decided}
    for name, at, saw in s.decided:
        for shard in SHARDS:
            if before(s, shard, at[shard] + 0.5) != saw[shard]:
                raise Broken("order", f"{name} did not see {before(s, shard, at[shard] + 0.5)!r}")
    for shard in SHARDS:
        for position, entry in enumerate(s.logs[shard], 1):
            if entry.saw is not None and before(s, shard, position) != entry.saw:
                raise Broken("order", f"{entry.by} did not see {before(s, shard, position)!r}")
        rows = [e.by for e in s.logs[shard] if e.by.startswith("s") and not e.is_fence]
        if len(rows) != len(set(rows)) or not known.issuperset(rows):
            raise Broken("once", f"entries of statements: {rows}, decided: {known}")


# -- the processes -------------------------------------------------------------------------------


def apply_to(s: State, shard: int, one: Open, plant: str) -> State:
    """The owner of a shard puts the rows of a decided statement, unless they are there."""
    if is_applied(s, shard, one.name) and plant != "apply twice":
        return s
    return appended(s, shard, Entry(one.name, has_row=remaining(s, shard, one, 99, plant)))


def statement(s: State, me: str, know: Known, plant: str) -> Steps:
    """Snapshot, propose, mark, claim and check, decide, apply, done, mark again."""
    step = know[0]
    if step in ("read", "propose", "mark"):
        return _proposing(s, me, know, plant)
    if step in ("claim", "late", "check"):
        return _checking(s, me, know, plant)
    return _deciding(s, me, know, plant)


def _proposing(s: State, me: str, know: Known, plant: str) -> Steps:
    step, *rest = know
    if step == "read":
        # What a read sees at one moment; `reader` shows that reads see such moments.
        virtual = tuple(one for one in s.chain.open if one.state == "decided")
        tips = tuple(len(log) for log in s.logs)
        saw = tuple(value(s, shard, tips[shard], virtual) for shard in SHARDS)
        own = frozenset(one.name for one in virtual)
        yield "read", s, ("propose", tips, saw, own)
    elif step == "propose":
        if s.chain.open and plant != "propose beside an open one":
            return
        after = s._replace(chain=s.chain.put(Open(me)))
        yield "propose", after, ("mark", *rest, after.chain.number, 0)
    elif step == "mark":
        *rest, number, shard = rest
        following = ("mark", *rest, number, 1) if shard == 0 else ("claim", *rest, number, (), 0)
        if plant == "marks after the claims":
            yield "no mark", s, following
        else:
            yield f"mark {shard}", marked(s, shard, 2 * number), following


def _checking(s: State, me: str, know: Known, plant: str) -> Steps:
    step, *rest = know
    if step == "claim":
        *rest, number, at, shard = rest
        if plant == "check before the fence":
            yield f"look {shard}", s, ("late", *rest, number, (*at, len(s.logs[shard])), shard)
            return
        after = claimed(s, shard, me)
        yield (
            f"claim {shard}",
            after,
            ("check", *rest, number, (*at, len(after.logs[shard])), shard),
        )
    elif step == "late":
        *rest, number, at, shard = rest
        after = claimed(s, shard, me)
        place = (*at[:-1], len(after.logs[shard]))
        yield f"claim {shard}", after, ("check", *rest, number, place, shard, at[-1])
    elif step == "check":
        tips, saw, own, number, at, shard, *looked = rest
        through = looked[0] if looked else at[shard]
        others = s.logs[shard][tips[shard] : through]
        clash = any(not e.is_fence and e.has_row and e.by not in own for e in others)
        if clash:
            yield f"conflict {shard}", s, ("over",)
        elif shard == 0:
            yield f"check {shard}", s, ("claim", tips, saw, own, number, at, 1)
        else:
            yield f"check {shard}", s, ("decide", tips, saw, own, number, at)


def _deciding(s: State, me: str, know: Known, plant: str) -> Steps:
    step, *rest = know
    mine = s.chain.find(me)
    if step == "decide":
        _, saw, _, number, at = rest
        if plant == "apply before it is decided":
            early = apply_to(s, 0, Open(me, "decided", at), plant)
            if early is not s and s.owners[0] == me:
                yield "apply early", early, ("decide", *rest)
        if mine is None and plant != "decide after an abort":
            yield "aborted", s, ("over",)
            return
        after = s._replace(chain=s.chain.put(Open(me, "decided", at)))
        after = after._replace(decided=(*s.decided, (me, at, saw)))
        yield "decide", after, ("apply", number, 0, at)
    elif step == "apply":
        number, shard, at = rest
        one = Open(me, "decided", at)
        following = ("apply", number, 1, at) if shard == 0 else ("done", number)
        if plant == "done before all is applied" and shard == 0:
            following = ("done", number)
        if s.owners[shard] == me:
            yield f"apply {shard}", apply_to(s, shard, one, plant), following
        else:
            yield f"claim again {shard}", claimed(s, shard, me), ("apply", *rest)
    elif step == "done":
        (number,) = rest
        chain = s.chain if mine is None else s.chain.drop(me, done=True)
        after = s._replace(chain=chain, told=s.told | {me})
        yield "done", after, ("close", number, 0)
    elif step == "close":
        number, shard = rest
        after_it: Known = ("close", number, 1) if shard == 0 else ("over",)
        yield f"close {shard}", marked(s, shard, 2 * number + 1), after_it


def writer(s: State, me: str, know: Known, plant: str) -> Steps:
    """Claims shard 0, settles what is open there, looks at the row, writes it."""
    step = know[0]
    if step == "claim":
        yield "claim", claimed(s, 0, me), ("look",)
    elif s.owners[0] != me:
        yield "fenced", s, ("over",)
    elif step == "look":
        # The mark was read after the fence; the chain is read if it is even.
        is_open = s.marks[0] % 2 == 0 and s.marks[0] > 0
        if not is_open or plant == "claim without a look at the chain":
            yield "mark", s, ("put",)
        else:
            yield "mark", s, ("settle",)
    elif step == "settle":
        one = next(iter(s.chain.open), None)
        if one is None:
            yield "nothing open", s, ("put",)
        elif one.state == "proposed":
            yield "abort", s._replace(chain=s.chain.drop(one.name, done=False)), ("put",)
        else:
            yield "apply", apply_to(s, 0, one, plant), ("put",)
    elif step == "put":
        saw = value(s, 0, 99, ())
        yield "put", appended(s, 0, Entry(me, saw=saw)), ("over",)


def native(s: State, me: str, know: Known, plant: str) -> Steps:
    """Claims shard 0 and writes its row, knowing nothing of statements."""
    del plant
    (step,) = know
    if step == "claim":
        yield "claim", claimed(s, 0, me), ("put",)
    elif step == "put" and s.owners[0] == me:
        yield "put", appended(s, 0, Entry(me)), ("over",)


def reader(s: State, me: str, know: Known, plant: str) -> Steps:
    """Marks before, ends of both logs, marks after; the chain, where these tell of a statement."""
    step, tries, must, known, marks, tips, after = know
    is_cold = me.startswith("c")
    if step == "begin":
        yield "begin", s, ("tip", tries, s.shown | s.told, known, marks, (), ())
    elif step == "tip":
        shard = len(tips)
        if is_cold and len(marks) == shard:
            yield (
                f"marks {shard}",
                s,
                ("tip", tries, must, known, (*marks, s.marks[shard]), tips, ()),
            )
            return
        found = (*tips, len(s.logs[shard]))
        yield (
            f"tip {shard}",
            s,
            ("tip" if shard == 0 else "marks", tries, must, known, marks, found, ()),
        )
    elif step == "marks":
        shard = len(after)
        found = (*after, s.marks[shard])
        following = "marks" if shard == 0 else "end"
        yield f"marks after {shard}", s, (following, tries, must, known, marks, tips, found)
    elif step == "end":
        is_quiet = marks == after and all(mark % 2 or not mark for mark in after)
        if is_quiet or plant == "read without starting over":
            yield "quiet", judged(s, tips, (), must), ("over", 0, (), None, (), (), ())
            return
        chain = s.chain
        if known is not None and known == chain.closed:
            virtual = tuple(one for one in chain.open if one.state == "decided")
            yield "with", judged(s, tips, virtual, must), ("over", 0, (), None, (), (), ())
        elif tries:
            again = () if is_cold else after
            yield "again", s, ("tip", tries - 1, must, chain.closed, again, (), ())


def judged(
    s: State, tips: tuple[int, int], virtual: tuple[Open, ...], must: frozenset[str]
) -> State:
    """The state after a read ended with those ends of the logs and those statements."""
    seen = []
    for shard in SHARDS:
        names = {one.name for one in virtual}
        names |= {e.by for e in s.logs[shard][: tips[shard]] if e.by[0] == "s" and not e.is_fence}
        seen.append(frozenset(names))
    if seen[0] != seen[1]:
        raise Broken(
            "atomic", f"a read saw {set(seen[0])} in one shard, {set(seen[1])} in the other"
        )
    if not must <= seen[0]:
        raise Broken("kept", f"a read saw {set(seen[0])} after {set(must)}")
    for shard in SHARDS:
        told = order(s, shard, tips[shard], seen[shard])
        right = told[-1][1] if told else ""
        if value(s, shard, tips[shard], virtual) != right:
            raise Broken("value", f"{value(s, shard, tips[shard], virtual)!r} instead of {right!r}")
    return s._replace(shown=s.shown | seen[0])


def finisher(s: State, me: str, know: Known, plant: str) -> Steps:
    """Aborts what is proposed; claims and applies, shard by shard, what is decided."""
    step, *rest = know
    if step == "look":
        one = next(iter(s.chain.open), None)
        if one is None:
            return
        if one.state == "proposed":
            yield "abort", s._replace(chain=s.chain.drop(one.name, done=False)), ("look",)
        else:
            yield "finish", s, ("claim", one, 0)
    elif step == "claim":
        one, shard = rest
        yield f"claim {shard}", claimed(s, shard, me), ("apply", one, shard)
    elif step == "apply":
        one, shard = rest
        following = ("claim", one, 1) if shard == 0 else ("done", one)
        if s.owners[shard] != me:
            yield "fenced", s, ("claim", one, shard)
        else:
            yield f"apply {shard}", apply_to(s, shard, one, plant), following
    elif step == "done":
        (one,) = rest
        done = s.chain.find(one.name) is not None
        chain = s.chain.drop(one.name, done=True) if done else s.chain
        yield "done", s._replace(chain=chain), ("look",)


_ROLES: Final[dict[str, tuple[Callable[[State, str, Known, str], Steps], Known]]] = {
    "s": (statement, ("read",)),
    "w": (writer, ("claim",)),
    "n": (native, ("claim",)),
    "r": (reader, ("begin", 2, frozenset(), None, (0, 0), (), ())),
    "c": (reader, ("begin", 2, frozenset(), None, (), (), ())),
    "f": (finisher, ("look",)),
}

ENTRIES_MAX: Final = 6
"""Entries in a log at most: processes that fence each other for ever are not followed."""


def steps(s: State, roles: tuple[str, ...], plant: str) -> Iterator[tuple[str, State]]:
    """Every state that one step of one process leads to."""
    for index, me in enumerate(roles):
        program, _ = _ROLES[me[0]]
        for name, after, know in program(s, me, s.at[index], plant):
            if max(map(len, after.logs)) <= ENTRIES_MAX:
                yield f"{me} {name}", after._replace(at=_with(s.at, index, know))


def explore(roles: tuple[str, ...], *, plant: str = "", states_max: int = 5_000_000) -> int:
    """Visit every reachable state and return their number, or raise `Broken` with its trace."""
    start = State(at=tuple(_ROLES[me[0]][1] for me in roles))
    return visit_all(start, lambda state: steps(state, roles, plant), check, states_max)


def main(arguments: list[str] | None = None) -> int:
    """Explore with the processes of the command line; prints the trace of a broken property."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator.statement_model", description=__doc__
    )
    parser.add_argument(
        "roles", nargs="*", default=["s1", "w1", "n1", "r1"], help="such as s1 s2 r1"
    )
    parser.add_argument("--plant", choices=PLANTS, default="")
    parser.add_argument("--states-max", type=int, default=5_000_000)
    chosen = parser.parse_args(arguments)
    return report(
        lambda: explore(tuple(chosen.roles), plant=chosen.plant, states_max=chosen.states_max)
    )


if __name__ == "__main__":
    sys.exit(main())
