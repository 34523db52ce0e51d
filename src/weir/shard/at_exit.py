"""Warn when a process ends with rows in memory that are in no log entry.

Only `durable_write=False` and `wait=False` leave such rows after a call has returned (M-8). They
are not written here: at this point threads of the interpreter and of Lance may be gone already, and
a program that was asked to end should end.
"""

from __future__ import annotations

import warnings
import weakref

from weir.env import AT_EXIT, SYSTEM
from weir.meters import HELD_BYTES, WRITERS
from weir.shard.state import WriterState

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


AT_EXIT.append(_warn)
