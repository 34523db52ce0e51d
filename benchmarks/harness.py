"""Workloads, and how one is run: every side in a process of its own, round by round.

All sides of a workload are set up first, each in its own process. In each round every side then
runs once, one after the other, starting with a different side each time: other load on the machine
affects all of them alike. A side is a context manager: entering it is the set-up, and it yields a
function that is called once per round and returns the round's figure.
"""

from __future__ import annotations

import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

Round = Callable[[], float]
Where = Literal["local", "s3", "far"]
Size = Literal["full", "quick", "tiny"]
Better = Literal["lower", "higher"]

ANYWHERE: tuple[Where, ...] = ("local", "s3", "far")
STEP_SECONDS = 240.0
"""Longest set-up or round of one side; a side that takes longer is killed and reported."""


@dataclass(frozen=True)
class Ctx:
    """The arguments of a side."""

    where: Where
    root: str
    """The URI that the workload has to itself; all of its sides share it."""
    options: dict[str, str]
    size: Size
    side: str
    data: dict[str, Any] = field(default_factory=dict)
    """The result of the workload's `prepare`."""

    def n(self, full: float, quick: float, tiny: float) -> int:
        """A count that depends on the size of the run."""
        return int({"full": full, "quick": quick, "tiny": tiny}[self.size])

    @property
    def seconds(self) -> float:
        """How long a round of a timed loop lasts."""
        return {"full": 0.7, "quick": 0.3, "tiny": 0.02}[self.size]

    def uri(self, name: str = "") -> str:
        """A URI that is used nowhere else."""
        own = f"{self.side}-{name}".replace(" ", "_").replace("/", "_")
        return f"{self.root}/{own}-{os.getpid()}-{time.monotonic_ns()}"


Side = Callable[[Ctx], AbstractContextManager[Round]]


@dataclass(frozen=True)
class Goal:
    """What weir's figure should be, relative to another side's.

    `within`: weir's cost is at most this multiple of the other side's. `times`: weir's speed is at
    least this multiple of the other side's.
    """

    against: str
    within: float | None = None
    times: float | None = None

    def judge(self, weir: float, other: float, better: Better) -> tuple[float, bool]:
        """The ratio that the goal bounds, and whether the goal is met."""
        cost = weir / other if better == "lower" else other / weir
        if self.within is not None:
            return cost, cost <= self.within
        assert self.times is not None
        return 1 / cost, 1 / cost >= self.times


@dataclass(frozen=True)
class Workload:
    """One line of the results."""

    name: str
    unit: str
    better: Better
    goal: str
    sides: Mapping[str, Side]
    """By name; "floor" is the physical limit, and all but "weir" and "floor" are peers."""
    goals: Mapping[Where, Sequence[Goal]] | Sequence[Goal] = ()
    """Without goals the figures are only reported."""
    prepare: Callable[[Ctx], dict[str, Any]] | None = None
    where: tuple[Where, ...] = ("local", "s3")
    """The stores it runs on; `ANYWHERE` if the figures depend on round trips to the store."""
    rounds_max: int = 99
    note: str = ""
    needs_spark: bool = False

    def goals_at(self, where: Where) -> Sequence[Goal]:
        """The goals on that store; "far" has those of "s3"."""
        if not isinstance(self.goals, Mapping):
            return self.goals
        return self.goals.get("s3" if where == "far" else where, ())


class SideFailed(Exception):
    """A side could not be set up or run; the other sides continue."""


class Worker:
    """One side in a process of its own, of this checkout or of that in `folder`."""

    def __init__(
        self,
        workload: str,
        ctx: Ctx,
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.side = ctx.side
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env=env,
        )
        self._send({"workload": workload, **vars(ctx)})

    def ask(self, word: str | None = None) -> dict[str, Any]:
        """Send a word, if given, and wait for the answer."""
        if word is not None:
            self._send(word)
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            ready = selector.select(STEP_SECONDS)
        line = out.readline() if ready else b""
        if not line:
            if not ready:
                self._process.kill()
            raise SideFailed(self._last_words() if ready else f"no answer in {STEP_SECONDS:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer

    def end(self) -> None:
        """Let the process exit, or kill it after ten seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideFailed(self._last_words()) from None

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "the process ended without a word"


@dataclass
class Figures:
    """The figures of a workload's rounds."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def medians(self) -> dict[str, float]:
        """One figure for each side that finished at least one round."""
        return {side: statistics.median(values) for side, values in self.rounds.items() if values}


def measure(workload: Workload, ctx: Ctx, rounds: int) -> Figures:
    """Run every side of the workload, in turn."""
    began = time.monotonic()
    figures = Figures()
    data: dict[str, Any] = {}
    if workload.prepare is not None:
        maker = Worker(workload.name, _for_side(ctx, "prepare", {}))
        try:
            data = maker.ask()["data"]
        except SideFailed as error:
            figures.errors["prepare"] = str(error)
            return figures
        finally:
            maker.end()
    workers: dict[str, Worker] = {}
    try:
        for side in workload.sides:
            worker = Worker(workload.name, _for_side(ctx, side, data))
            workers[side] = worker
            _guarded(figures, worker, worker.ask)
        for number in range(rounds):
            for worker in _turned(list(workers.values()), number):
                if worker.side not in figures.errors:
                    _guarded(figures, worker, lambda worker=worker: _round(figures, worker))
        for worker in workers.values():
            if worker.side not in figures.errors:
                _guarded(figures, worker, lambda worker=worker: _last(figures, worker))
    finally:
        for worker in workers.values():
            worker.end()
    figures.seconds = time.monotonic() - began
    return figures


def _round(figures: Figures, worker: Worker) -> None:
    figures.rounds.setdefault(worker.side, []).append(float(worker.ask("round")["value"]))


def _last(figures: Figures, worker: Worker) -> None:
    figures.peak_mib[worker.side] = float(worker.ask("close")["peak_mib"])


def _guarded(figures: Figures, worker: Worker, step: Callable[[], Any]) -> None:
    try:
        step()
    except SideFailed as error:
        figures.errors[worker.side] = str(error)


def _for_side(ctx: Ctx, side: str, data: dict[str, Any]) -> Ctx:
    return Ctx(ctx.where, ctx.root, ctx.options, ctx.size, side, data)


def _turned(workers: list[Worker], number: int) -> Iterator[Worker]:
    start = number % max(1, len(workers))
    yield from workers[start:]
    yield from workers[:start]
