"""Errors of pylance become errors of weir."""

import pytest
from lance.commit import CommitConflictError

from weir.errors import (
    CommitConflict,
    CorruptEntry,
    InvalidInput,
    MissingEntry,
    NotAWeirTable,
    StoreDenied,
    StoreError,
)
from weir.lake.lance_errors import lance_errors, translated


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitConflictError("Retryable commit conflict for version 4"), CommitConflict),
        (OSError("Invalid user input: Stale SSTable compaction for shard x"), CommitConflict),
        (OSError("Too many concurrent writers. Attempted 0 retries."), CommitConflict),
        (ValueError("Dataset at path x was not found: Not found: x/_versions"), NotAWeirTable),
        (OSError("Object at location data/x.lance not found"), MissingEntry),
        (OSError("Generic S3 error: Access Denied"), StoreDenied),
        (OSError("connection reset"), StoreError),
        (OSError("Invalid user input: no such column"), InvalidInput),
        (ValueError("whatever"), InvalidInput),
        (ValueError("LanceError(IO): file size is too small"), CorruptEntry),
        (ValueError("file does not appear to be a Lance file (invalid magic: [76])"), CorruptEntry),
    ],
)
def test_errors_of_pylance_are_told_apart(error: Exception, kind: type[Exception]) -> None:
    assert type(translated(error, "doing it")) is kind
    with pytest.raises(kind, match="doing it"), lance_errors("doing it"):
        raise error


def test_a_message_does_not_tell_where_in_lance_it_was_born() -> None:
    born = "Schema error: No field named nope., /home/x/rust/lance/src/dataset/scanner.rs:839:33"
    told = str(translated(ValueError(f"Invalid user input: {born}"), "scanning t"))
    assert told == "scanning t: Invalid user input: Schema error: No field named nope."


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(MissingEntry, match=r"^mine$"), lance_errors("doing it"):
        raise MissingEntry("mine")
