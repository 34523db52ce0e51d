"""Commits to the base that are repeated when another one was in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weir.env import Env
from weir.errors import CommitConflict

T = TypeVar("T")


def repeated(env: Env, attempt: Callable[[], T], what: str, *, most: int = 16) -> T:
    """The result of `attempt`, which reads the base, checks and commits, all of it again after a
    `CommitConflict`; after `most` of them, a `CommitConflict` that says so."""
    last: CommitConflict | None = None
    for _ in env.attempts(most):
        try:
            return attempt()
        except CommitConflict as conflict:
            last = conflict
    raise CommitConflict(
        f"{what}: other commits to the base were in the way {most} times; nothing was changed."
        " Try again when no compaction runs"
    ) from last
