"""Translates pylance's errors into weir's, in one place.

pylance raises built-in classes, whose kinds differ only in their text. All such texts are in this
module: `lance_errors` translates an error, and the `is_...` functions recognise the few that a
caller handles itself. A missing object is `data`, never `unavailable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

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
from weir.store.object_errors import failure, refusal, status_in, without_body

_DENIED = ("access denied", "unauthenticated", "permission denied", "invalidaccesskeyid", " 403")
_MISSING = ("not found", "no such file", "object at location")
_IN_A_FILE = "not a directory (os error 20)"
"""Lance looked for a dataset where a file is, or below one."""
_CONFLICT = ("commit conflict", "incompatible transaction", "too many concurrent writers")
_WRONG_INPUT = ("invalid user input", "not supported")
_NO_VALUE = "error applying filter expression to batch: arrow error"
"""A filter that has no value for some row, such as a division by zero."""
_REQUEST = re.compile(r"Error performing [A-Z]|error sending request|Generic \w+ error: HTTP")
"""A request of Lance's that failed, with or without a response."""
_STALE = "stale sstable compaction"
_DAMAGED = (
    "does not have sufficient data",
    "file size is too small",
    "for object of size",
    "invalid magic",
    "status code: 416",
    "magic number",
)
_BEFORE_THE_FIRST = re.compile(r"\b(0|18446744073709551615)\.manifest was not found")
"""Lance looks for what a new dataset was based on: version 0, by either way of naming versions."""
_INTERRUPT = re.compile(r"External error: KeyboardInterrupt\b")
"""A signal that Lance noticed while it waited: it passes on the text of Python's exception."""
_PLACES = re.compile(r",?\s*\S+\.rs:\d+:\d+")
"""Where in Lance's source an error was raised: kept in the cause, removed from the message."""
_FIELDS = re.compile(r"\s*Valid fields are ([^\n]*?)\.(?=\s|$)")
"""What Lance says of an unknown column: all that it could read, also columns that nobody has."""
OF_LANCE: Final = (
    "_rowid",
    "_rowaddr",
    "_rowoffset",
    "_row_created_at_version",
    "_row_last_updated_at_version",
    "_distance",
    "_score",
)
"""Columns that Lance adds: they mean something else in each level, and nothing in memory."""


@contextmanager
def lance_errors(what: str, columns: Sequence[str] | None = None) -> Iterator[None]:
    """Run a pylance call; `what` says what was tried and where, for the message.

    `columns` are those of the table, where Lance reads only some of them; see `plain_text`.
    """
    try:
        yield
    except WeirError:
        raise
    except BaseException as error:
        if not is_of_lance(error):
            raise
        if _INTERRUPT.search(str(error)):  # guard: F-16
            raise KeyboardInterrupt from error
        cause, told = error, without_body(str(error))
        if told != str(error):  # a traceback shows the cause, too
            cause = OSError(told)
        raise translated(error, what, columns) from cause


def is_of_lance(error: BaseException) -> bool:
    """True for what a call of pylance raises, also for a panic, which is no `Exception`."""
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or isinstance(error, OSError | ValueError | RuntimeError | NotImplementedError)


def is_tag_taken(error: Exception) -> bool:
    """True when a tag of that name exists already."""
    return "already exists" in str(error).lower()


def is_dataset_taken(error: Exception) -> bool:
    """True when a new dataset was not made because one is at that place, for long or just now."""
    text = str(error).lower()
    return "dataset already exists" in text or _BEFORE_THE_FIRST.search(text) is not None


def is_tag_gone(error: Exception) -> bool:
    """True when Lance did not find a tag: there was none, or it was deleted during the call."""
    text = str(error).lower()
    # guard: K-5 last
    return "ref not found" in text or ("_refs/tags/" in text and "not found" in text)


def is_moved_index(error: Exception) -> bool:
    """True when pylance 14 cannot represent a commit: a file compaction that moved an index."""
    return "RewrittenIndex" in str(error)


def plain_text(error: BaseException, columns: Sequence[str] | None = None) -> str:
    """Lance's message without the locations in its source, and without what stores responded.

    Of an unknown column it tells which there are: `columns`, or if that is None those that Lance
    names, without its own.
    """

    def existing(found: re.Match[str]) -> str:
        named = found[1].split(", ") if columns is None else columns
        shown = [name for name in named if name not in OF_LANCE]
        return f" The columns are {', '.join(shown)}." if shown else ""

    return _FIELDS.sub(existing, _PLACES.sub("", without_body(str(error))))


def translated(error: BaseException, what: str, columns: Sequence[str] | None = None) -> WeirError:
    """The weir error that tells the caller what to do about `error`."""
    raw = str(error)
    text = without_body(raw).lower()
    message = f"{what}: {plain_text(error, columns)}"
    # Checked first: it quotes the filter or a value, which may hold any of the words below.
    if (text.startswith(_WRONG_INPUT) and _STALE not in text) or _NO_VALUE in text:
        return InvalidInput(message)
    words = (*_CONFLICT, _STALE)
    if isinstance(error, CommitConflictError) or any(word in text for word in words):
        return CommitConflict(f"{message}; read the table again and retry")
    is_request = status_in(raw) is not None or _REQUEST.search(raw) is not None
    refused = refusal(raw, where=what) if is_request else None
    if refused is not None:
        return refused
    if (text.startswith("dataset at path") and "not found" in text) or _IN_A_FILE in text:
        return NotAWeirTable(f"{message}; make a table with `create`")
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
    if status_in(raw) is not None:
        return failure(raw, what)
    if is_request or isinstance(error, OSError):
        return StoreError(message)
    return InvalidInput(message)
