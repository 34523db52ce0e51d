"""The collection protocol as a small model, all of whose interleavings are explored.

Writers (weir's and native ones), collectors, one log, one manifest, one floor; each step is one
request to the store. A put that is late in the network is a writer whose put step comes late; a
sleeping process is one that is not scheduled. Time passes in ticks, so that ages and proofs expire.

What must hold in every state (INVARIANTS 10.2):
  acked      an acknowledged row is in a published SSTable, or in the log above R
  twice      no position is acknowledged twice
  holes      above R the log has no holes
  epochs     above R the epochs of entries with rows never fall
  replay     every entry that a claimant must replay exists
  deletes    no entry at R or above it is deleted

`python -m simulator.gc_model --help`; `explore(Bounds(...))` from code.
"""

from __future__ import annotations

import argparse
import sys

from simulator.gc_states import NEVER, Bounds, State, first_state, steps
from simulator.models import Broken, report, visit_all

__all__ = ["NEVER", "Bounds", "Broken", "check", "explore", "main"]


def check(s: State) -> None:
    """Raise `Broken` unless every property holds."""
    found = {entry.position: entry for entry in s.log}
    for position, row in s.acked:
        entry = found.get(position)
        in_log = position > s.replay_after and entry is not None and entry.row == row
        if row not in s.flushed and not in_log:
            raise Broken(
                "acked",
                f"row {row} was acknowledged at position {position} and nobody will ever see it "
                f"(R {s.replay_after}, floor {s.floor})",
            )
    above = [entry for entry in s.log if entry.position > s.replay_after]
    if above and above[-1].position - s.replay_after != len(above):
        raise Broken("holes", f"a hole above R {s.replay_after}: {above}")
    # A native claimant finds the tip after its claim: its sentinel, without rows, may land late.
    epochs = [entry.epoch for entry in above if entry.row]
    if epochs != sorted(epochs):
        raise Broken("epochs", f"epochs fall above R: {above}")


def explore(bounds: Bounds) -> int:
    """Visit every reachable state and return their number, or raise `Broken` with its trace."""
    start = first_state(bounds)
    return visit_all(start, lambda state: steps(state, bounds), check, bounds.states_max)


def main(arguments: list[str] | None = None) -> int:
    """Explore with bounds from the command line; prints the trace of a broken property."""
    parser = argparse.ArgumentParser(prog="python -m simulator.gc_model", description=__doc__)
    parser.add_argument("roles", nargs="*", default=Bounds.roles, help="such as w11 w10 n10")
    parser.add_argument("--collectors", type=int, default=1)
    parser.add_argument("--ticks", type=int, default=0)
    parser.add_argument("--retention", type=float, default=NEVER)
    parser.add_argument("--fence-ttl", type=float, default=0.0)
    parser.add_argument("--forget-silent-claims", dest="silent_claims", action="store_false")
    parser.add_argument("--states-max", type=int, default=Bounds.states_max)
    chosen = vars(parser.parse_args(arguments))
    bounds = Bounds(**{**chosen, "roles": tuple(chosen["roles"])})
    print(bounds)
    return report(lambda: explore(bounds))


if __name__ == "__main__":
    sys.exit(main())
