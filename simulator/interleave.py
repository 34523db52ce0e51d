"""Real code run in every interleaving of its store calls, up to a number of preemptions.

Each process runs in a thread of its own and stops before every call to the store; only one runs at
a time. A schedule says at which calls another process takes over. `explore` runs the scenario anew
for every schedule up to a number of preemptions (switches away from a process that could have
continued); switches at the end of a process are free. A call that is late in the network is a
process stopped before it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weir.env import SystemThreads
from weir.store.api import Store

T = TypeVar("T")

Process = Callable[[Store], None]
"""Runs against the store it is given, and keeps its own results."""

VERBS = (
    "put_if_absent",
    "put",
    "get",
    "get_range",
    "get_many",
    "head",
    "head_many",
    "list",
    "list_folder",
    "list_many",
    "delete",
)
TIMEOUT = 30.0


class InlineThreads(SystemThreads):
    """Runs everything in the calling thread: a process is one thread here."""

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """One after the other."""
        return [run(item) for item in items]


@dataclass
class Decision:
    """One point where the next process to run was chosen."""

    enabled: tuple[int, ...]
    chosen: int
    preempts: bool


@dataclass
class _Thread:
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: BaseException | None = None
    done: bool = False
    call: str = "start"


class Run:
    """One execution under one schedule."""

    def __init__(self, processes: Sequence[Process], store: Store, prefix: Sequence[int]) -> None:
        self._store = store
        self._prefix = prefix
        self._threads = [_Thread() for _ in processes]
        self._stopped = threading.Semaphore(0)
        self.decisions: list[Decision] = []
        self.trace: list[str] = []
        self._processes = processes

    def execute(self) -> None:
        """Run all processes to their end; raises what one of them raised."""
        for number, process in enumerate(self._processes):
            threading.Thread(target=self._body, args=(number, process), daemon=True).start()
            assert self._stopped.acquire(timeout=TIMEOUT), "a process never reached its first call"
        current = -1
        while enabled := tuple(i for i, t in enumerate(self._threads) if not t.done):
            current = self._choose(enabled, current)
            self.trace.append(f"{current}: {self._threads[current].call}")
            self._threads[current].go.release()
            assert self._stopped.acquire(timeout=TIMEOUT), "\n".join(self.trace)
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    def _choose(self, enabled: tuple[int, ...], current: int) -> int:
        at = len(self.decisions)
        default = current if current in enabled else enabled[0]
        chosen = self._prefix[at] if at < len(self._prefix) else default
        self.decisions.append(Decision(enabled, chosen, current in enabled and chosen != current))
        return chosen

    def _body(self, number: int, process: Process) -> None:
        thread = self._threads[number]
        try:
            self._stop(number, "start")
            process(_SteppedStore(self._store, lambda call: self._stop(number, call)))
        except BaseException as error:  # noqa: BLE001  handed to the caller of `execute`
            thread.error = error
        thread.done = True
        self._stopped.release()

    def _stop(self, number: int, call: str) -> None:
        thread = self._threads[number]
        thread.call = call
        self._stopped.release()
        assert thread.go.acquire(timeout=TIMEOUT), "the scheduler went away"


class _SteppedStore:
    """Stops before every call."""

    def __init__(self, inner: Store, stop: Callable[[str], None]) -> None:
        self._inner = inner
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in VERBS:
            return attribute

        def call(target: Any, /, *rest: Any, **options: Any) -> Any:
            paths = target if isinstance(target, str) else ",".join(target[:2])
            # The hint decides nothing and is written unconditionally: no need to switch there.
            if not paths.endswith("version_hint.json"):
                self._stop(f"{name} {paths}")
            result = attribute(target, *rest, **options)
            return iter(list(result)) if name == "list" else result

        return call


@dataclass
class Scenario:
    """A fresh store, its processes, and what must hold when all have ended."""

    store: Store
    processes: Sequence[Process]
    check: Callable[[], None]


def explore(
    make: Callable[[], Scenario], *, preemptions: int, runs_max: int | None = None, seed: int = 1
) -> int:
    """Run every schedule with at most `preemptions`; returns the number of runs.

    With `runs_max`, run only that many, picked by the seed from the schedules found so far. Raises
    what a process or the check raised, with the schedule as a note.
    """
    todo: list[tuple[int, ...]] = [()]
    runs = 0
    rng = random.Random(seed)
    while todo and runs != runs_max:
        prefix = todo.pop(-1 if runs_max is None else rng.randrange(len(todo)))
        scenario = make()
        run = Run(scenario.processes, scenario.store, prefix)
        try:
            run.execute()
            scenario.check()
        except BaseException as error:
            error.add_note("\n".join(run.trace))
            raise
        runs += 1
        used = sum(d.preempts for d in run.decisions[: len(prefix)])
        chosen = [d.chosen for d in run.decisions]
        for at in range(len(prefix), len(run.decisions)):
            decision = run.decisions[at]
            before = chosen[at - 1] if at else -1
            for other in decision.enabled:
                if other == decision.chosen:
                    continue
                cost = before in decision.enabled and other != before
                if used + cost <= preemptions:
                    todo.append((*chosen[:at], other))
    return runs
