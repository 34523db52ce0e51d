"""Two checkouts in turns: `python -m benchmarks.beside ../other --only "front door" --rounds 15`.

Each runs its own benchmarks on its own weir, in a process of its own, with the packages of this
environment. Only the sides that the other checkout has under the same name are measured, and only
weir's, unless `--sides` names others. The turn goes back and forth (A B B A), so that neither is
always first.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness import ANYWHERE, Ctx, SideFailed, Worker, Workload
from benchmarks.places import open_ground, open_place
from benchmarks.workloads import WORKLOADS

HERE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Checkout:
    """A work tree, and how its processes find its sources before those installed."""

    folder: Path

    @property
    def _env(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}"}

    def start(self, workload: str, ctx: Ctx) -> Worker:
        """A process that runs one side of that tree's workload."""
        return Worker(workload, ctx, folder=self.folder, env=self._env)

    def workloads(self) -> set[str]:
        """The names of what it can run."""
        listed = subprocess.run(
            [sys.executable, "-m", "benchmarks", "--list"],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
        )
        return set(listed.stdout.splitlines())


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("other", type=Path, help="the work tree of the other checkout")
    parser.add_argument("--only", default="", metavar="PATTERN", help="workloads by regex")
    parser.add_argument("--sides", default="^weir$", metavar="PATTERN", help="sides by regex")
    parser.add_argument("--where", choices=ANYWHERE, default="local", help="the kind of store")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each checkout")
    parser.add_argument("--size", choices=("full", "quick", "tiny"), default="full")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    asked = arguments(argv)
    other = Checkout(asked.other.resolve())
    known = other.workloads()
    chosen = [w for w in WORKLOADS.values() if re.search(asked.only, w.name) and w.name in known]
    print(f"{'workload, side':64} {'other':>10} {'here':>10} {'here/other':>10}  unit", flush=True)
    failed = False
    with open_ground() as ground:
        for workload in chosen:
            for side in workload.sides:
                if asked.where in workload.where and re.search(asked.sides, side):
                    with open_place(asked.where, ground) as place:
                        ctx = Ctx(asked.where, place.root, place.options, asked.size, side)
                        line = one_line(workload, ctx, other, asked.rounds)
                    failed |= line is None
                    print(line or f"{workload.name}, {side}: failed", flush=True)
    return int(failed)


def one_line(workload: Workload, ctx: Ctx, other: Checkout, rounds: int) -> str | None:
    """The medians of both, their ratio, and the middle half of the ratios of single turns."""
    try:
        before, after = in_turns(workload, ctx, other, rounds)
    except SideFailed as error:
        print(f"{workload.name}, {ctx.side}: {error}", file=sys.stderr)
        return None
    ratios = [new / old for old, new in zip(before, after, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    old, new = statistics.median(before), statistics.median(after)
    name = f"{workload.name}, {ctx.side}"
    return (
        f"{name:64} {old:10.4g} {new:10.4g} {new / old:10.3f}  {workload.unit},"
        f" {workload.better} is better; half of the turns {low:.2f} to {high:.2f}"
    )


def in_turns(
    workload: Workload, ctx: Ctx, other: Checkout, rounds: int
) -> tuple[list[float], list[float]]:
    """The figures of the other checkout and of this one, turn by turn."""
    pair = (other, Checkout(HERE))
    figures: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        workers = [stack.enter_context(_running(one, workload, ctx)) for one in pair]
        for turn in range(rounds):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for which in order:
                figures[which].append(float(workers[which].ask("round")["value"]))
    return figures


@contextmanager
def _running(checkout: Checkout, workload: Workload, ctx: Ctx) -> Iterator[Worker]:
    """A worker that is set up, with data of its own checkout: formats may differ."""
    data = {}
    if workload.prepare is not None:
        maker = checkout.start(workload.name, replace(ctx, side="prepare"))
        try:
            data = maker.ask()["data"]
        finally:
            maker.end()
    worker = checkout.start(workload.name, replace(ctx, data=data))
    try:
        worker.ask()
        yield worker
    finally:
        worker.end()


if __name__ == "__main__":
    sys.exit(main())
