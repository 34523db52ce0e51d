"""What writers that nobody closed do when their process ends.

It is warned of rows in memory that are in no log entry. Only `durable_write=False` and `wait=False`
leave such rows after a call has returned (M-8). They are not written here: at this point threads of
the interpreter and of Lance may be gone already, and a program that was asked to end should end.

An entry or a flush that is under way is waited for, shortly. The interpreter ends its threads
wherever they are, and one that is inside of a library takes the process down with it (SIGABRT).
"""

from __future__ import annotations

import warnings
import weakref
from typing import Final

from weir.env import AT_EXIT, SYSTEM
from weir.meters import HELD_BYTES, WRITERS
from weir.shard.state import WriterState

PATIENCE_SECONDS: Final = 5.0
"""How long the end of a process waits: a store that does not answer does not keep it."""

_OPEN: weakref.WeakSet[WriterState] = weakref.WeakSet()


def watch(state: WriterState) -> None:
    """Check this writer when the process ends; simulated ones end with their simulation."""
    if state.env is SYSTEM:
        _OPEN.add(state)


def _living() -> list[WriterState]:
    return [s for s in list(_OPEN) if not s.stopping and s.failure is None]


# Read when somebody asks for the page, so that no put pays for them.
SYSTEM.meters.watch(WRITERS, lambda: {(): len(_living())})
SYSTEM.meters.watch(HELD_BYTES, lambda: {(): sum(state.held_bytes for state in _living())})


def _warn() -> None:
    for state in list(_OPEN):
        puts = state.waiting
        if puts and state.failure is None and not state.ending.home.is_forked:
            warnings.warn(
                f"{state.name}: the process exits with {puts} puts that are not durable yet; their"
                " rows are lost, unless an exit handler that was registered before weir was"
                " imported closes the writer. Close it, or call flush_wal(), before the program"
                " ends",
                RuntimeWarning,
                stacklevel=1,
            )


def _wait() -> None:
    clock = SYSTEM.clock
    until = clock.boottime() + PATIENCE_SECONDS
    while any(map(_is_at_work, list(_OPEN))) and clock.boottime() < until:
        clock.sleep(0.01)


def _is_at_work(state: WriterState) -> bool:
    if state.ending.home.is_forked:
        return False
    if state.failure is not None:
        return state.is_flushing
    return state.slot is not None or state.is_flush_due


AT_EXIT.extend((_warn, _wait))
