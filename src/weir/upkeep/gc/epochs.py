"""Which entries of a log are the first of their epoch, found with few reads.

Epochs never fall by position (F-7), so two entries of one epoch have only that epoch between them.
Bisection finds every change with about `e log(n/e)` reads for e epochs in n entries; each round
reads all segments at once. The number of reads is bounded; entries that are not settled by then are
reported as unknown, and unknown entries are kept (G-11).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from weir.upkeep.gc.plan import Run

READS_MAX: Final = 8192
"""Per shard and collection; later collections finish a log with more changes of epoch."""

ReadEpochs = Callable[[Sequence[int]], Sequence[int | None]]
"""Epochs of the entries with those indexes; None for one that is gone or cannot be read."""


class _Finder:
    def __init__(self, read: ReadEpochs, budget: int) -> None:
        self._read = read
        self.budget = budget
        self.known: dict[int, int | None] = {}

    def ask(self, indexes: Sequence[int]) -> None:
        wanted = [i for i in dict.fromkeys(indexes) if i not in self.known][: self.budget]
        self.budget -= len(wanted)
        if wanted:
            self.known.update(zip(wanted, self._read(wanted), strict=True))

    def first_readable(self, first: int, last: int, step: int) -> int | None:
        """The first readable index from `first` to `last`, in steps of `step`."""
        index = first
        while index != last + step and self.budget:
            self.ask([index])
            if self.known.get(index) is not None:
                return index
            index += step
        return None


def find_runs(first: int, last: int, read: ReadEpochs, budget: int = READS_MAX) -> list[Run]:
    """The runs that make up `[first, last]`, ascending; None is the epoch of unknown ones."""
    if last < first:
        return []
    finder = _Finder(read, budget)
    low = finder.first_readable(first, last, 1)
    high = finder.first_readable(last, first, -1)
    if low is None or high is None:
        return [Run(first, last, None)]
    _bisect(finder, low, high)
    return _runs(first, last, finder.known)


def _bisect(finder: _Finder, low: int, high: int) -> None:
    segments = [(low, high)]
    while segments:
        halves = []
        for a, b in segments:
            middle = _middle(finder, a, b)
            if middle is not None:
                halves.append((a, middle, b))
        finder.ask([middle for _, middle, _ in halves])
        segments = []
        for a, middle, b in halves:
            if middle not in finder.known:
                continue  # the budget is spent
            if finder.known[middle] is None:
                segments.append((a, b))  # unreadable: its neighbour is read next
            else:
                segments += [(a, middle), (middle, b)]


def _middle(finder: _Finder, a: int, b: int) -> int | None:
    """The index to read between two known ones, or None when there is nothing to learn."""
    known = finder.known
    if known[a] == known[b]:
        return None
    middle = (a + b) // 2
    around = itertools.chain(range(middle, b), range(middle - 1, a, -1))
    # An index inside an open segment that was already tried is unreadable; try its neighbour.
    return next((index for index in around if index > a and index not in known), None)


def _runs(first: int, last: int, known: dict[int, int | None]) -> list[Run]:
    """Join the known epochs: a stretch between two equal epochs is of that epoch."""
    readable = sorted(i for i, epoch in known.items() if epoch is not None)
    runs: list[Run] = []

    def add(start: int, end: int, epoch: int | None) -> None:
        if start > end:
            return
        if runs and runs[-1].epoch == epoch and runs[-1].last == start - 1:
            runs[-1] = Run(runs[-1].first, end, epoch)
        else:
            runs.append(Run(start, end, epoch))

    at = first
    for index in readable:
        epoch = known[index]
        same = bool(runs) and runs[-1].epoch == epoch
        add(at, index - 1, epoch if same else None)
        add(index, index, epoch)
        at = index + 1
    add(at, last, None)
    return runs
