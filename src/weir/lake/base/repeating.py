"""Commits to the base that are repeated when another one was in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from weir.errors import CommitConflict

T = TypeVar("T")
ATTEMPTS: Final = 5


def repeated(attempt: Callable[[], T], what: str) -> T:
    """The result of `attempt`, which reads the base, checks and commits, all of it again after a
    `CommitConflict`; after five of them, a `CommitConflict` that says so."""
    last: CommitConflict | None = None
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except CommitConflict as conflict:
            last = conflict
    raise CommitConflict(
        f"{what}: other commits to the base were in the way {ATTEMPTS} times; nothing was changed."
        " Try again when no compaction runs"
    ) from last
