"""Visits every state of the model of collection at the bounds of CI, or at larger ones with --soak.

`gc_states` is the model: writers (weir's and native ones), collectors, one log, one manifest, one
floor, time; each step is one request to the store. `gc_model` visits every reachable state and
checks the properties of docs/internals/rules.md, section 10. The expected result of each line is
part of it: where a lock is off, the run must find a counterexample.
"""

import argparse
import sys
import time
from typing import Any

from simulator.gc_model import NEVER, Bounds, Broken, explore

A: dict[str, Any] = {"retention": NEVER, "fence_ttl": NEVER}
B: dict[str, Any] = {"retention": 0, "fence_ttl": 0}
BOTH: dict[str, Any] = {"retention": NEVER, "fence_ttl": 0}
NEITHER: dict[str, Any] = {"retention": 0, "fence_ttl": NEVER}

SMALL = [
    ("first entries alone", Bounds(("w11", "w11"), 2, **A), True),
    ("stale ownership alone", Bounds(("w11", "w11"), 2, **B), True),
    ("both", Bounds(("w10", "w10", "w01"), 1, **BOTH), True),
    ("neither", Bounds(("w11", "w11"), 1, **NEITHER), False),
    ("retention of two proofs", Bounds(("w10", "w01"), 1, 3, 2, 1), True),
    ("retention too short", Bounds(("w10", "w11"), 1, 3, 1, 2), False),
    ("native, first entries", Bounds(("n10", "n10", "w01"), 1, **A), True),
    ("native, none kept", Bounds(("n10", "w11"), 1, **B), False),
    (
        "native, silent claim forgotten",
        Bounds(("w30", "n10", "w01"), 1, 0, NEVER, NEVER, False),
        False,
    ),
    ("native, silent claim", Bounds(("w30", "n10", "w01"), 1, **A), True),
]
LARGE = [
    ("three writers, two collectors, a", Bounds(("w10", "w11", "w01"), 2, **A), True),
    ("three writers, two collectors, b", Bounds(("w10", "w11", "w01"), 2, **B), True),
    ("three full writers", Bounds(("w11", "w11", "w11"), 1, **BOTH), True),
    ("two entries each", Bounds(("w21", "w21"), 1, **A), True),
    ("time", Bounds(("w11", "w11"), 1, 4, 2, 1), True),
    ("natives and a writer", Bounds(("n10", "n11", "w11"), 1, **A), True),
]


def main() -> int:
    """Run the bounds, and print what each found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", action="store_true")
    wrong = 0
    for name, bounds, holds in SMALL + (LARGE if parser.parse_args().soak else []):
        began = time.perf_counter()
        try:
            found = f"{explore(bounds)} states, nothing broken"
            good = holds
        except Broken as broken:
            found = f"after {len(broken.trace)} steps: {broken}"
            good = not holds
        wrong += not good
        took = time.perf_counter() - began
        print(f"{'ok   ' if good else 'WRONG'} {took:6.1f} s  {name}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
