"""Interrupt every verb of a writer at every point where CPython delivers a signal; cancel it where
its task is suspended, and let its timeout strike wherever it waits. Then interrupt every read.

    make interrupts                            every point of every case: hours
    make interrupts VERB=put POINTS=20         20 points, spread, of each case of one verb
    python -m tests.interrupts --verb put      every point of the verb's cases
    python -m tests.interrupts --verb put-shard-memtable-alone --point 1c0ffee5.1
    python -m tests.interrupts --list          the cases
    python -m tests.interrupts --signals 60    real signals, a minute for each case

After each interrupt another thread puts, looks, flushes and closes: nothing may hang, every row is
reported once, and the writer goes on for others (F-16). `trial.py` has the judgement, `points.py`
the points, `reads.py` the reads. Trials run in a process of their own. When one hangs, the process
prints all stacks and ends, and the next one goes on behind that point.
"""

import argparse
import faulthandler
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.interrupts.cases import Case, cases
from tests.interrupts.points import Points
from tests.interrupts.reads import ReadCase, read_cases

AnyCase = Case | ReadCase

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 15.0
NONE = "-"
"""The point of a trial without an interrupt."""
MOST_LOOKS = 8
"""How often a case is run to learn its points."""
STACKS = 8000
"""Most characters of stacks that are printed."""
IDLE = re.compile(r"first\):\n  File \S+weir/env.py\S+ line \d+ in _work\n")


@dataclass
class Result:
    """How a trial ended, or where it hung."""

    case: str
    point: str
    place: str
    outcome: str
    detail: str

    def __str__(self) -> str:
        again = f"python -m tests.interrupts --verb {self.case} --point {self.point}"
        what = f"{self.outcome.upper()} {self.case} point {self.point} at {self.place}"
        return f"{what}\n  {again}\n  {self.detail}"


def every_case(verb: str = "") -> Iterator[AnyCase]:
    """The cases of writers and of reads, or those that `verb` chooses."""
    yield from cases(verb)
    yield from read_cases(verb)


# -- the process that runs trials ----------------------------------------------------------------


def _say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


class Worker:
    """Runs trials one after the other and says on standard output what happens."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._numbers = count(1)

    def storm(self, case: AnyCase, seconds: float, seed: int) -> None:
        """Interrupt the calls of a case with real signals."""
        from tests.interrupts.signals import Storm

        faulthandler.dump_traceback_later(seconds + HANG_SECONDS, exit=True)
        _say(place=f"signals, seed {seed}")
        if isinstance(case, ReadCase):
            outcome, detail = case.storm(f"{self._folder}/{case.name}-{seed}", seconds, seed)
        else:
            outcome, detail = Storm(case, self._folder, seed).run(seconds)
        faulthandler.cancel_dump_traceback_later()
        _say(outcome=outcome, detail=detail, passed={})

    def trial(self, case: AnyCase, point: str) -> None:
        """Run one trial on a table of its own."""
        from tests.interrupts.trial import AnyPoints, Trial, points_of

        def tell(place: str) -> None:
            _say(place=place)

        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        number = next(self._numbers)
        place = f"{self._folder}/{number}"
        points: AnyPoints
        if isinstance(case, ReadCase):
            points = Points(point, tell)
            outcome, detail = case.trial(place, points)
        else:
            points, env = points_of(case, point, tell)
            outcome, detail = Trial(case, case.create(place, env), number).run(points)
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(place)
        _say(outcome=outcome, detail=detail, passed=points.passed)


def work(folder: str) -> None:
    """Run what standard input names, one line each: a case and a point, or a case, "signals", for
    how many seconds and with which seed."""
    by_name = {case.name: case for case in every_case()}
    worker = Worker(folder)
    for line in sys.stdin:
        name, point, *signals = line.split()
        if signals:
            worker.storm(by_name[name], float(signals[0]), int(signals[1]))
        else:
            worker.trial(by_name[name], point)


# -- the process that asks for them --------------------------------------------------------------


class Runner:
    """Asks a worker for trials, and starts another when it hung."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="weir-interrupts-")
        self._starts = 0
        self._process: subprocess.Popen[str] | None = None
        self.passed: dict[str, str] = {}
        """The points that the last trial passed, with their places."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)
        self._folder.cleanup()

    def _end(self, worker: subprocess.Popen[str]) -> int:
        self._process = None
        with worker:  # closes its pipes
            return worker.wait()

    def trial(self, case: AnyCase, point: str, *signals: float) -> Result | None:
        """The result of a trial; None when the call ended without passing that point."""
        worker = self._worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        print(case.name, point, *signals, file=worker.stdin)
        worker.stdin.flush()
        place = ""
        for line in worker.stdout:
            fact = json.loads(line)
            place = fact.get("place", place)
            if "outcome" in fact:
                self.passed = fact["passed"]
                if not place and fact["outcome"] == "ok":
                    return None
                return Result(case.name, point, place, fact["outcome"], fact["detail"])
        hung = self._end(worker) == 1 and "Timeout (" in self._stderr().read_text()
        return Result(case.name, point, place, "hang" if hung else "died", self._said())

    def _worker(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._starts += 1
            folder = Path(self._folder.name) / str(self._starts)
            folder.mkdir()
            with self._stderr().open("w") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.interrupts", "--worker", str(folder)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
        return self._process

    def _stderr(self) -> Path:
        return Path(self._folder.name) / f"stderr-{self._starts}"

    def _said(self) -> str:
        """What a worker printed at its end: the stacks, without those of idle pool threads."""
        parts = self._stderr().read_text().split("\n\n")
        shown = [part for part in parts if not IDLE.search(part)]
        return "\n\n".join(shown)[-STACKS:]

    def storm(self, case: AnyCase, seconds: float, seed: int) -> Result:
        """The result of so many seconds of real signals."""
        result = self.trial(case, "signals", seconds, seed)
        assert result is not None, "a storm always has a result"
        return result

    def every(self, case: AnyCase) -> Iterator[Result]:
        """Every point of a case, also those that only some of its trials pass."""
        done: set[str] = set()
        left = [NONE]
        while left:
            point = left.pop(0)
            done.add(point)
            result = self.trial(case, point)
            if result is not None:
                yield result
            left += [one for one in self.passed if one not in done and one not in left]

    def sample(self, case: AnyCase, points: int) -> Iterator[Result]:
        """Points spread over the case, the same ones every time."""
        for trial in count(1):
            result = self.trial(case, NONE)
            if result is not None:
                yield result
            # The first of a process also passes what later ones find in memory. A call that looks
            # late may find nothing to wait for, and so pass no point: one in a hundred.
            if trial >= 2 and (self.passed or trial >= MOST_LOOKS):
                break
        passed = list(self.passed)
        assert passed, f"{case.name} passed no point in {MOST_LOOKS} trials"
        for i in range(points):
            result = self.trial(case, passed[(2 * i + 1) * len(passed) // (2 * points)])
            if result is not None:
                yield result


@dataclass(frozen=True)
class Plan:
    """What to run."""

    verb: str = ""
    """Verbs, or some of their cases, with commas; empty: all."""
    points: int = 0
    """How many points of each case; 0: every one."""
    point: str = ""
    """Only this one."""
    signals: float = 0
    """Seconds of real signals for each case, instead of points."""
    seed: int = 1

    def results(self, runner: Runner, case: AnyCase) -> Iterator[Result]:
        """The results of one case."""
        if self.signals:
            yield runner.storm(case, self.signals, self.seed)
        elif self.point:
            if (result := runner.trial(case, self.point)) is not None:
                yield result
        elif self.points:
            yield from runner.sample(case, self.points)
        else:
            yield from runner.every(case)


def run(plan: Plan, runner: Runner) -> list[Result]:
    """Run it, and print what happens; returns what went wrong."""
    wrong: list[Result] = []
    for case in every_case(plan.verb):
        outcomes: Counter[str] = Counter()
        for result in plan.results(runner, case):
            outcomes[result.outcome] += 1
            if result.outcome == "ok":
                continue
            wrong.append(result)
            print(result, flush=True)
        print(f"{case.name}: {dict(outcomes)}", flush=True)
    print(f"faults: {len(wrong)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts")
    parser.add_argument("--verb", default="", help="verbs or cases, with commas; all")
    parser.add_argument("--points", type=int, default=0, help="points of each case; 0: every one")
    parser.add_argument("--point", default="", help="only this one")
    parser.add_argument("--signals", type=float, default=0, help="seconds of real signals instead")
    parser.add_argument("--seed", type=int, default=1, help="of the real signals")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return 0
    if args.list:
        print(*(case.name for case in every_case(args.verb)), sep="\n")
        return 0
    plan = Plan(args.verb, args.points, args.point, args.signals, args.seed)
    with Runner() as runner:
        return 1 if run(plan, runner) else 0


if __name__ == "__main__":
    sys.exit(main())
