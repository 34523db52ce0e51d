"""Random sequences of every public verb on real Lance and local disk, against a dictionary.

    make fuzz SEEDS=100                          a hundred histories
    python -m tests.fuzz --seed 7                one, the same every time
    python -m tests.fuzz --seed 7 --steps 3,9,12 only those operations of it
    python -m tests.fuzz --seed 7 --verbose      each operation as it runs

After each operation every read, every checkpoint and the change feed are compared with the model
(`model.py`). A failure prints the seed, the fewest operations it could be reduced to, and the
command that runs them again. `operations.py` has the operations.
"""

import argparse
import itertools
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.model import Kind
from tests.fuzz.operations import OPERATIONS
from tests.fuzz.world import World

STEPS = 40
SHRINK_SECONDS = 120.0


@dataclass(frozen=True)
class Failure:
    """Where a history failed, and how."""

    seed: int
    steps: list[int]
    """The operations that were run, by number."""
    kind: str
    text: str
    told: list[str]

    def __str__(self) -> str:
        steps = ",".join(map(str, self.steps))
        return "\n".join(
            [
                f"FAILED seed {self.seed}: {self.kind}",
                *(f"  {one}" for one in self.told),
                self.text,
                f"again: python -m tests.fuzz --seed {self.seed} --steps {steps}",
            ]
        )


def run(
    seed: int, steps: Sequence[int], ran: Counter[str] | None = None, *, verbose: bool = False
) -> Failure | None:
    """Run those operations of the seed's history, with a check after each."""
    folder = Path(tempfile.mkdtemp(prefix="weir-fuzz-"))
    done: list[int] = []
    world = None
    try:
        world = World(folder, f"{seed}")
        for step in steps:
            done.append(step)
            name = _step(world, random.Random(f"{seed} {step}"), step, verbose=verbose)
            if ran is not None:
                ran[name] += 1
    except Exception as error:
        told = [] if world is None else world.told
        kind = f"{_last_operation(told)} {type(error).__name__}"
        return Failure(seed, done, kind, traceback.format_exc(), list(told))
    finally:
        if world is not None:
            world.close()
    return None


def _last_operation(told: list[str]) -> str:
    return next((one.split()[2] for one in reversed(told) if one[0].isdigit()), "create")


def _step(world: World, rng: random.Random, step: int, *, verbose: bool) -> str:
    place = rng.choice(world.places)
    ready = [one for one in OPERATIONS.values() if one.is_ready(world, place)]
    chosen = rng.choices(ready, [one.weight for one in ready])[0]
    world.tell(f"{step} {place.name}: {chosen.name}")
    if verbose:
        print(world.told[-1], flush=True)
    chosen.run(world, place, rng)
    world.check(rng)
    return chosen.name


def shrink(failure: Failure) -> Failure:
    """Leave out operations as long as the same kind of failure remains, for a bounded time."""
    end = time.monotonic() + SHRINK_SECONDS
    size = max(1, len(failure.steps) // 2)
    while size and time.monotonic() < end:
        for start in range(0, len(failure.steps), size):
            fewer = failure.steps[:start] + failure.steps[start + size :]
            smaller = run(failure.seed, fewer) if fewer else None
            if smaller is not None and smaller.kind == failure.kind:
                failure = smaller
                break
        else:
            size //= 2
    return failure


def fuzz(seeds: Sequence[int], steps: Sequence[int], *, verbose: bool = False) -> list[Failure]:
    """Run histories; what failed, reduced."""
    logging.disable(logging.CRITICAL)
    ran: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        failure = run(seed, steps, ran, verbose=verbose)
        if failure is not None:
            failures.append(shrink(failure) if len(steps) > 1 else failure)
            print(failures[-1], flush=True)
    print(f"{len(seeds)} histories, {sum(ran.values())} operations, {len(failures)} failures")
    print(", ".join(f"{name} {times}" for name, times in ran.most_common()))
    return failures


def _is_own(seed: int) -> bool:
    """True for a history that begins with a table where each writer has a shard of its own."""
    return Kind.drawn(random.Random(f"{seed}")).silent_after is not None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, help="run only this history")
    parser.add_argument("--seeds", type=int, default=20, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--length", type=int, default=STEPS, help="operations of a history")
    parser.add_argument("--steps", default="", help="only these operations, by number")
    parser.add_argument("--per-writer", action="store_true", help="only with weir.PerWriter")
    parser.add_argument("--verbose", action="store_true", help="print operations as they run")
    args = parser.parse_args()
    drawn = (seed for seed in itertools.count(args.first) if not args.per_writer or _is_own(seed))
    seeds = [*itertools.islice(drawn, args.seeds)] if args.seed is None else [args.seed]
    steps = [int(one) for one in args.steps.split(",") if one] or range(args.length)
    return 1 if fuzz(seeds, steps, verbose=args.verbose) else 0


if __name__ == "__main__":
    sys.exit(main())
