"""Runs histories of every scenario and prints, for each, what it used of the real machine."""

import json
import logging
import sys

from simulator.simulate import ALL, draw_plan, simulate
from weir.env import SystemClock, SystemThreads

SEEDS = 3


def main() -> None:
    logging.disable(logging.CRITICAL)
    used: list[str] = []

    def forbid(owner: type, name: str) -> None:
        def call(*_args: object, **_options: object) -> None:
            used.append(f"{owner.__name__}.{name}")
            raise AssertionError(used[-1])

        setattr(owner, name, call)

    for name in ("start", "map"):
        forbid(SystemThreads, name)
    for name in ("sleep", "boottime", "wall"):
        forbid(SystemClock, name)
    answer: dict[str, list[str]] = {}
    for scenario in sorted(ALL):
        used.clear()
        failures = [simulate(draw_plan(seed, scenario)).failure for seed in range(SEEDS)]
        answer[scenario] = [*used, *(str(each) for each in failures if each is not None)]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
