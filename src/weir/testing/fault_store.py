"""A store that misbehaves on request: per verb, per path, as often as the test says.

    store = FaultStore(MemoryStore())
    store.on("put_if_absent", "*/wal/*").fail_after()          # applied, the answer is lost
    store.on("get").fail_before(times=2)                       # the first two reads fail
    store.on("put_if_absent", skip=3).fail_before(times=None)  # for ever, after three
    store.on("write", rate=0.1).fail_before(times=None)        # one write in ten never arrives
    late = store.on("put_if_absent", "*/wal/*").hold()         # LostAnswer now ...
    late.release()                                             # ... applied now
    gate = store.on("put_if_absent", "*/manifest/*").pause()   # the caller waits before applying
    gate.wait_reached(); ...; gate.release()
    store.crash_at(3, "after")                                 # dies after its third write

The verb is a name of `Store`, `"read"`, `"write"` or `"*"`; the path a pattern in which `*` also
matches slashes. Many reads count one by one: a `get`, or a `get_range` of a beginning. A failed
write is a `LostAnswer`, since a client cannot know whether it was applied; `refuse` is a failure
that rules that out.
Every call is recorded in `log` and counted in `counts`; `plan` returns the faults as values that
another `FaultStore` accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from weir.env import SYSTEM, Env
from weir.errors import StoreDenied, StoreError
from weir.store.api import Blob, Bytes, Folder, LostAnswer, Meta, Parts, Store
from weir.testing.faults import WRITES, Action, Crash, Event, Fault, Gate, Held

__all__ = ["Crash", "Event", "Fault", "FaultBuilder", "FaultStore", "Gate", "Held"]

T = TypeVar("T")


class _Rule:
    def __init__(self, fault: Fault, env: Env) -> None:
        self.fault = fault
        self.held = Held()
        self.gate = Gate(env)
        self._env = env
        self._seen = 0
        self._struck = 0

    def strikes(self, op: str, paths: Sequence[str]) -> bool:
        if not self.fault.matches(op, paths):
            return False
        self._seen += 1
        if self._seen <= self.fault.skip:
            return False
        if self.fault.times is not None and self._struck >= self.fault.times:
            return False
        if self.fault.rate < 1.0 and self._env.random.random() >= self.fault.rate:
            return False
        self._struck += 1
        return True


@dataclass
class _Life:
    """What a store and its folders go through together."""

    mutations: int = 0
    crash_at: tuple[int, str] | None = None
    has_crashed: bool = False


class FaultBuilder:
    """What `FaultStore.on` returns: choose what happens to the calls it matches."""

    def __init__(self, store: FaultStore, fault: Fault) -> None:
        self._store = store
        self._fault = fault

    def delay(self, seconds: float, *, times: int | None = None) -> None:
        """Let time pass on the environment's clock, then continue (perhaps into another fault)."""
        self._add("delay", times, seconds=seconds)

    def fail_before(self, *, times: int | None = 1) -> None:
        """Fail without applying; a writer cannot know that (`LostAnswer`)."""
        self._add("fail_before", times)

    def fail_after(self, *, times: int | None = 1) -> None:
        """Apply, then fail: the lost answer."""
        self._add("fail_after", times)

    def refuse(self, *, times: int | None = 1) -> None:
        """Fail with an answer that rules out that the call was applied (a plain `StoreError`)."""
        self._add("refuse", times)

    def deny(self, *, times: int | None = 1) -> None:
        """Refuse the credentials."""
        self._add("deny", times)

    def hold(self, *, times: int | None = 1) -> Held:
        """The sender gets `LostAnswer` now; the write is applied at `release()`."""
        return self._add("hold", times).held

    def pause(self, *, times: int | None = 1) -> Gate:
        """The caller waits for `release()` before its call is applied, then all goes normally."""
        return self._add("pause", times).gate

    def duplicate(
        self, *, times: int | None = 1, answer: Literal["first", "second"] = "first"
    ) -> None:
        """Apply twice; with `answer='second'` it looks like a hidden retry by the client."""
        self._add("duplicate", times, answer=answer)

    def _add(self, action: Action, times: int | None, **more: Any) -> _Rule:
        return self._store.add(replace(self._fault, action=action, times=times, **more))


class FaultStore(Store):
    """Any store, with faults. As thread-safe as the inner store."""

    def __init__(self, inner: Store, plan: Sequence[Fault] = (), *, env: Env = SYSTEM) -> None:
        self.inner = inner
        self.log: list[Event] = []
        self.counts: Counter[str] = Counter()
        self._env = env
        self._lock = env.threads.lock()
        self._rules: list[_Rule] = []
        self._life = _Life()
        for fault in plan:
            self.add(fault)

    def around(self, inner: Store) -> FaultStore:
        """Another store, such as a folder of this one, under the same faults and in one log."""
        other = copy(self)
        other.inner = inner
        return other

    @property
    def mutations(self) -> int:
        """Writes so far: run once without faults to learn the number of crash points."""
        return self._life.mutations

    @property
    def plan(self) -> list[Fault]:
        """The faults that were added, as values."""
        return [rule.fault for rule in self._rules]

    @property
    def uri(self) -> str:
        """The inner store's."""
        return self.inner.uri

    def on(
        self, op: str = "*", path: str = "*", *, skip: int = 0, rate: float = 1.0
    ) -> FaultBuilder:
        """Choose calls. If several faults match, the one added first strikes, then the next."""
        return FaultBuilder(self, Fault(op, path, "delay", skip=skip, rate=rate))

    def add(self, fault: Fault) -> _Rule:
        """Add a fault given as a value."""
        rule = _Rule(fault, self._env)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Remove all faults; held requests stay held."""
        with self._lock:
            self._rules.clear()
            self._life.crash_at = None

    def crash_at(self, write: int, when: Literal["before", "after"] = "before") -> None:
        """Die at the n-th write from now (1 is the next): it and every later call raise `Crash`.

        Open `inner` again to see what the dead process left behind.
        """
        self._life.crash_at = (self.mutations + write, when)

    def events(self, op: str = "*", path: str = "*") -> list[Event]:
        """The recorded calls that match."""
        wanted = Fault(op, path, "delay")
        return [event for event in self.log if wanted.matches(event.op, [event.path])]

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """See `Store`."""
        return self._call("put_if_absent", [path], lambda: self.inner.put_if_absent(path, data))

    def put(self, path: str, data: Bytes) -> None:
        """See `Store`."""
        self._call("put", [path], lambda: self.inner.put(path, data))

    def put_parts(self, path: str, parts: Parts) -> None:
        """See `Store`."""
        self._call("put_parts", [path], lambda: self.inner.put_parts(path, parts))

    def get(self, path: str) -> Blob:
        """See `Store`."""
        return self._call("get", [path], lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See `Store`."""
        return self._call("get_range", [path], lambda: self.inner.get_range(path, start, length))

    def head(self, path: str) -> Meta | None:
        """See `Store`."""
        return self._call("head", [path], lambda: self.inner.head(path))

    def list(self, prefix: str) -> Iterator[Meta]:
        """See `Store`; the whole listing is read at once."""
        return self._call("list", [prefix], lambda: iter(tuple(self.inner.list(prefix))))

    def list_folder(self, prefix: str) -> Folder:
        """See `Store`."""
        return self._call("list_folder", [prefix], lambda: self.inner.list_folder(prefix))

    def delete(self, paths: Sequence[str]) -> None:
        """See `Store`; a fault strikes if any of the paths matches."""
        self._call("delete", paths, lambda: self.inner.delete(paths))

    def now(self) -> float:
        """See `Store`."""
        return self._call("now", [""], self.inner.now)

    def _call(self, op: str, paths: Sequence[str], apply: Callable[[], T]) -> T:
        path, life = paths[0] if paths else "", self._life
        with self._lock:
            if life.has_crashed:
                raise Crash(f"{op} {path}: the process has already crashed")
            self.counts[op] += 1
            life.mutations += op in WRITES
            crash = life.crash_at if op in WRITES else None
            crash = crash if crash and crash[0] == life.mutations else None
            life.has_crashed = crash is not None
            delays, action = self._choose(op, paths)
        if crash:
            if crash[1] == "after":
                self._apply(op, path, apply)
            self.log.append(Event(op, path, f"crash {crash[1]}"))
            raise Crash(f"crashed {crash[1]} {op} {path}")
        for seconds in delays:
            self._env.clock.sleep(seconds)
        if action:
            return self._strike(action, op, path, apply)
        return self._apply(op, path, apply)

    def _choose(self, op: str, paths: Sequence[str]) -> tuple[tuple[float, ...], _Rule | None]:
        """All delays that strike, and the first other fault that does; the rest stay for later."""
        delays: tuple[float, ...] = ()
        action: _Rule | None = None
        for rule in self._rules:
            if rule.fault.action == "delay":
                delays += (rule.fault.seconds,) if rule.strikes(op, paths) else ()
            elif action is None and rule.strikes(op, paths):
                action = rule
        return delays, action

    def _strike(self, rule: _Rule, op: str, path: str, apply: Callable[[], T]) -> T:
        action = rule.fault.action
        if action == "pause":
            rule.gate.pass_through()
            return self._apply(op, path, apply)
        if action == "duplicate":
            answers = [self._quietly(op, path, apply) for _ in range(2)]
            answer = answers[0 if rule.fault.answer == "first" else 1]
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.log.append(Event(op, path, action))
        if action == "refuse":
            raise StoreError(f"{self.uri}/{path}: refused by the fault plan")
        if action == "deny":
            raise StoreDenied(f"{self.uri}/{path}: denied by the fault plan")
        if action == "fail_after":
            self._quietly(op, path, apply)
        elif action == "hold":
            rule.held.add(lambda: self._quietly(op, path, apply))
        kind = LostAnswer if op in WRITES else StoreError
        raise kind(f"{self.uri}/{path}: {op} failed by the fault plan ({action})")

    def _apply(self, op: str, path: str, apply: Callable[[], T]) -> T:
        try:
            result = apply()
        except Exception as error:
            self.log.append(Event(op, path, type(error).__name__))
            raise
        self.log.append(Event(op, path, "ok"))
        return result

    def _quietly(self, op: str, path: str, apply: Callable[[], T]) -> T | Exception:
        try:
            return self._apply(op, path, apply)
        except Exception as error:  # noqa: BLE001 (nobody is there to hear the answer)
            return error
