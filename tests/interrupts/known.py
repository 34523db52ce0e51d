"""Faults that are known and not mended yet. An empty list is the aim.

A trial that ends with one of these outcomes after an interrupt on such a way is no failure.
`make interrupts` fails when a listed fault did not occur in a full run: take it off the list then.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    handle: str
    outcomes: tuple[str, ...]
    way: str
    """A regular expression found in the way to the interrupted place, innermost function first."""
    verbs: tuple[str, ...] = ()
    """Empty: every verb."""

    def covers(self, verb: str, way: str, outcome: str | None = None) -> bool:
        if self.verbs and verb not in self.verbs:
            return False
        return (outcome is None or outcome in self.outcomes) and bool(re.search(self.way, way))


KNOWN: list[Known] = []


def find(verb: str, way: str, outcome: str | None = None) -> Known | None:
    """The known fault that occurs there; None: there is none."""
    return next((known for known in KNOWN if known.covers(verb, way, outcome)), None)
