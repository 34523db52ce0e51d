"""`python -m benchmarks`: run workloads, print a table, write JSON, a page and plots."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from benchmarks import report
from benchmarks.harness import ANYWHERE, Ctx, Figures, Size, Where, Workload, measure
from benchmarks.places import open_ground, open_place
from benchmarks.workloads import WORKLOADS

DOCS = Path(__file__).resolve().parent.parent / "docs"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller data, shorter rounds")
    parser.add_argument("--size", choices=("full", "quick", "tiny"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", metavar="PATTERN", help="workloads by regex")
    parser.add_argument("--where", choices=ANYWHERE, help="one kind of store only")
    parser.add_argument("--rounds", type=int, help="rounds of each side (full 5, quick 3)")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    parser.add_argument(
        "--save",
        action=argparse.BooleanOptionalAction,
        help="write docs/benchmarks.{json,md} and plots; default: when everything was run",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="write what was run in the place of its results there, and keep the others",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    asked = arguments(argv)
    size: Size = asked.size or ("quick" if asked.quick else "full")
    rounds = asked.rounds or {"full": 5, "quick": 3, "tiny": 1}[size]
    chosen = [w for w in WORKLOADS.values() if re.search(asked.only, w.name, re.IGNORECASE)]
    places: list[Where] = [asked.where] if asked.where else list(ANYWHERE)
    if asked.list or not chosen:
        print("\n".join(w.name for w in chosen or WORKLOADS.values()))
        return 0 if asked.list else 2
    machine = report.describe_machine()
    began = time.monotonic()
    results = []
    print(report.HEADER, flush=True)
    with open_ground() as ground:
        for workload in chosen:
            for where in places:
                if where in workload.where:
                    number = min(rounds, workload.rounds_max)
                    figures = run_one(workload, where, size, number, ground)
                    result = report.as_result(workload, where, figures, machine["date"])
                    results.append(result)
                    print(report.line(result), flush=True)
    print(report.summary(results, time.monotonic() - began))
    complete = not asked.only and not asked.where
    if asked.save or asked.again or (asked.save is None and complete):
        command = "make bench" if size == "full" else "python -m benchmarks --quick"
        report.save(
            report.saved_with(results, DOCS) if asked.again else results, machine, command, DOCS
        )
        print(f"written: {DOCS.name}/benchmarks.json, benchmarks.md and img/bench-*.svg")
    return 1 if any("weir" in result["errors"] for result in results) else 0


def run_one(workload: Workload, where: Where, size: Size, rounds: int, ground: str) -> Figures:
    """Run one workload on one store; any exception becomes part of the result."""
    try:
        with open_place(where, ground) as place:
            ctx = Ctx(where, place.root, place.options, size, "")
            return measure(workload, ctx, rounds)
    except Exception as error:  # noqa: BLE001  the other workloads go on
        return Figures(errors={"weir": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    sys.exit(main())
