"""Many simulated histories: `python -m simulator.soak --seeds 1000`; one: `--seed 7 --verbose`.

Every seed is a history of its own: processes, settings, faults and the order of every step are
drawn from it. A failing one prints the command that runs it again, the promise it broke, and a
smaller plan that breaks it too.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulator.scenarios import Outcome, Plan
from simulator.simulate import ALL, draw_plan, shrink, simulate

CHUNK = 20
MUST_FIRE = (
    "refuse",
    "lose_after",
    "lose",
    "late",
    "applied late",
    "refused late",
    "twice",
    "echo",
    "slow",
    "read_error",
    "outage",
    "orphan",
    "kill",
    "pages",
)
"""A long run in which one of these never fired fails: it would prove nothing about that fault."""


def run_chunk(job: tuple[int, int, str | None]) -> dict[str, Any]:
    """Run some seeds in this process; counts, and the failures."""
    start, count, scenario = job
    logging.disable(logging.CRITICAL)
    fired: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    scenarios: Counter[str] = Counter()
    failures = []
    steps = calls = 0
    for seed in range(start, start + count):
        outcome = simulate(draw_plan(seed, scenario))
        fired += outcome.fired
        counts += outcome.counts
        scenarios[outcome.plan.scenario] += 1
        steps += outcome.steps
        calls += outcome.calls
        if outcome.failure is not None:
            failures.append((seed, outcome.letter, str(outcome.failure).partition("\n")[0]))
    return {
        "runs": count,
        "fired": fired,
        "counts": counts,
        "scenarios": scenarios,
        "failures": failures,
        "steps": steps,
        "calls": calls,
    }


def soak(
    start: int, seeds: int, jobs: int, scenario: str | None, *, fail_fast: bool = False
) -> int:
    """Run a range of seeds and report; the exit status."""
    console = Console(stderr=True)
    work = [
        (first, min(CHUNK, start + seeds - first), scenario)
        for first in range(start, start + seeds, CHUNK)
    ]
    began = time.perf_counter()
    total: dict[str, Any] = {"runs": 0, "steps": 0, "calls": 0}
    counters = {name: Counter[str]() for name in ("fired", "counts", "scenarios")}
    failures: list[tuple[int, str, str]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("seeds", total=seeds)
        for part in _parts(work, jobs):
            for name in total:
                total[name] += part[name]
            for name, counter in counters.items():
                counter.update(part[name])
            failures += part["failures"]
            for seed, letter, text in part["failures"]:
                progress.console.print(f"seed {seed} broke {letter}: {text}", markup=False)
            progress.update(bar, advance=part["runs"])
            if failures and fail_fast:
                break
    seconds = time.perf_counter() - began
    silent = [] if scenario else _silent(counters["fired"], total["runs"])
    _report(total, counters, failures, seconds, start, silent)
    return 1 if failures or silent else 0


def _parts(work: list[tuple[int, int, str | None]], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        yield from map(run_chunk, work)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_pin) as pool:
        yield from pool.imap_unordered(run_chunk, work)


def _pin() -> None:
    """Pin each process to one core, where handing over the baton is faster."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = multiprocessing.current_process()._identity[0] - 1  # noqa: SLF001
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _silent(fired: Counter[str], runs: int) -> list[str]:
    return [kind for kind in MUST_FIRE if not fired[kind]] if runs >= 500 else []


def _report(
    total: dict[str, Any],
    counters: dict[str, Counter[str]],
    failures: list[tuple[int, str, str]],
    seconds: float,
    start: int,
    silent: list[str],
) -> None:
    runs = total["runs"]
    print(
        f"{runs} histories from seed {start} in {seconds:.1f} s ({runs / seconds:.0f}/s), "
        f"{total['steps']} steps, {total['calls']} store calls"
    )
    for title, name in (("faults", "fired"), ("told", "counts"), ("scenarios", "scenarios")):
        pairs = sorted(counters[name].items())
        print(f"  {title}: " + ", ".join(f"{key} {count}" for key, count in pairs))
    for kind in silent:
        print(f"  fault {kind!r} never fired: the run proves nothing about it")
    if not failures:
        print("  no promise was broken")
        return
    print(f"  {len(failures)} histories broke a promise:")
    for seed, letter, text in sorted(failures)[:20]:
        print(f"    make sim SEED={seed}    {letter}: {text[:140]}")


def show(plan: Plan, *, verbose: bool, shrinking: bool) -> int:
    """Run one plan and print its history."""
    logging.disable(logging.CRITICAL)
    outcome = simulate(plan)
    if outcome.failure is not None and shrinking:
        plan = shrink(plan, outcome.letter)
        outcome = simulate(plan)
    if verbose:
        _print_history(outcome)
    print(
        f"seed {plan.seed}: {outcome.steps} steps, {outcome.calls} store calls, "
        f"trace {outcome.digest}"
    )
    print("faults: " + (", ".join(f"{k} {n}" for k, n in sorted(outcome.fired.items())) or "none"))
    if outcome.failure is None:
        print("no promise was broken")
        return 0
    print(f"broke {outcome.letter}: {outcome.failure}")
    if verbose:
        traceback.print_exception(outcome.failure)
    print("plan: " + json.dumps(plan.to_record()))
    print(f"again: make sim SEED={plan.seed}")
    return 1


def _print_history(outcome: Outcome) -> None:
    plan = outcome.plan
    print(f"scenario {plan.scenario}, {'keyed' if plan.keyed else 'append-only'}, {plan.settings}")
    for role in plan.roles:
        print(
            f"  {role.kind}: {role.sessions} sessions of {role.ops} ops in {role.threads} threads"
        )
    for step, who, what in outcome.notes:
        print(f"{step:6} {who:14} {what}")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m simulator.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--scenario", choices=sorted(ALL), help="only this one")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    parser.add_argument("--seed", type=int, help="run this one history")
    parser.add_argument("--plan", type=Path, help="run the plan in this JSON file")
    parser.add_argument("--verbose", action="store_true", help="print the history")
    parser.add_argument("--shrink", action="store_true", help="cut a failing plan down first")
    args = parser.parse_args(argv)
    if args.plan is not None:
        plan = Plan.from_record(json.loads(args.plan.read_text()))
        return show(plan, verbose=args.verbose, shrinking=args.shrink)
    if args.seed is not None:
        return show(
            draw_plan(args.seed, args.scenario), verbose=args.verbose, shrinking=args.shrink
        )
    return soak(args.start, args.seeds, args.jobs, args.scenario, fail_fast=args.fail_fast)


if __name__ == "__main__":
    sys.exit(main())
