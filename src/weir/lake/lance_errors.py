"""Translates pylance's errors into weir's, in one place.

pylance raises built-in classes, whose kinds differ only in their text. All such texts are in this
module: `lance_errors` translates an error, and the `is_...` functions recognise the few that a
caller handles itself. A missing object is `data`, never `unavailable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lance.commit import CommitConflictError

from weir.errors import (
    CommitConflict,
    CorruptEntry,
    InvalidInput,
    MissingEntry,
    NotAWeirTable,
    StoreDenied,
    StoreError,
    WeirError,
)

_DENIED = ("access denied", "unauthenticated", "permission denied", "invalidaccesskeyid", " 403")
_MISSING = ("not found", "no such file", "object at location")
_CONFLICT = (
    "commit conflict",
    "incompatible transaction",
    "too many concurrent writers",
    "stale sstable compaction",
)
_DAMAGED = (
    "does not have sufficient data",
    "file size is too small",
    "for object of size",
    "invalid magic",
    "magic number",
)
_PLACES = re.compile(r",?\s*\S+\.rs:\d+:\d+")
"""Where in Lance's source an error was raised: kept in the cause, removed from the message."""


@contextmanager
def lance_errors(what: str) -> Iterator[None]:
    """Run a pylance call; `what` says what was tried and where, for the message."""
    try:
        yield
    except WeirError:
        raise
    except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
        raise translated(error, what) from error


def is_tag_taken(error: Exception) -> bool:
    """True when a tag of that name exists already."""
    return "already exists" in str(error).lower()


def is_tag_gone(error: Exception) -> bool:
    """True when Lance did not find a tag: there was none, or it was deleted during the call."""
    text = str(error).lower()
    return "ref not found" in text or ("_refs/tags/" in text and "not found" in text)


def is_moved_index(error: Exception) -> bool:
    """True when pylance 14 cannot represent a commit: a file compaction that moved an index."""
    return "RewrittenIndex" in str(error)


def plain_text(error: Exception) -> str:
    """Lance's message without the locations in its source."""
    return _PLACES.sub("", str(error))


def translated(error: Exception, what: str) -> WeirError:
    """The weir error that tells the caller what to do about `error`."""
    text = str(error).lower()
    message = f"{what}: {plain_text(error)}"
    if isinstance(error, CommitConflictError) or any(word in text for word in _CONFLICT):
        return CommitConflict(f"{message}; read the table again and retry")
    if text.startswith("dataset at path") and "not found" in text:
        return NotAWeirTable(f"{message}; create the table with `weir.create`")
    if any(word in text for word in _DENIED):
        return StoreDenied(f"{message}; check the storage options")
    if any(word in text for word in _MISSING):
        return MissingEntry(f"{message}; it may have been collected: read the table again")
    if any(word in text for word in _DAMAGED):
        return CorruptEntry(
            f"{message}. A file is truncated or was replaced. Restore it from a copy of the table."
            " If it belongs to the base, you can also roll back to an older version, with Lance or"
            " with a checkpoint"
        )
    if isinstance(error, OSError) and "invalid user input" not in text:
        return StoreError(message)
    return InvalidInput(message)
