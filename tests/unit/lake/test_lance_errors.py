"""Errors of pylance become errors of weir."""

import traceback

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
    StoreUnsuitable,
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
        (ValueError("Invalid user input: planning: Field b not found in struct"), InvalidInput),
        (OSError("Invalid user input: filter s = ' 403 commit conflict' and x"), InvalidInput),
        (ValueError("Not supported: AggregateFunction in s = 'not found'"), InvalidInput),
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


TOKEN = "SESSIONTOKEN\nSECONDLINE"
URL = "https://acc.blob.core.windows.net/b/t/_versions/1.manifest?sv=2024&sig=SIGNATURE"


def answered(status: str, code: str) -> str:
    """What Lance 14 says of a response, word for word."""
    body = f"<Error><Code>{code}</Code><Message>m</Message><Token-0>{TOKEN}</Token-0></Error>"
    return (
        f"LanceError(IO): Generic S3 error: Error performing GET {URL} in 528.8µs - Server returned"
        f" non-2xx status code: {status}: {body}, /src/rust/lance-io/src/object_store.rs:1576:42"
    )


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("400 Bad Request", "ExpiredToken", StoreDenied),
        ("400 Bad Request", "InvalidToken", StoreDenied),
        ("400 Bad Request", "InvalidRequest", StoreError),
        ("401 Unauthorized", "x", StoreDenied),
        ("403 Forbidden", "InvalidAccessKeyId", StoreDenied),
        ("404 Not Found", "NoSuchBucket", InvalidInput),
        ("404 Not Found", "NoSuchKey", MissingEntry),
        ("416 Range Not Satisfiable", "InvalidRange", CorruptEntry),
        ("500 Internal Server Error", "InternalError", StoreError),
        ("501 Not Implemented", "NotImplemented", StoreUnsuitable),
        ("503 Service Unavailable", "SlowDown", StoreError),
    ],
)
@pytest.mark.parametrize("raised", [OSError, ValueError])
def test_a_response_decides_and_its_body_is_told_nowhere(raised, status, code, kind) -> None:
    """Found by an attack: S3 repeats a refused session token, which was in messages and logs."""
    with pytest.raises(kind) as caught, lance_errors("opening s3://b/t"):
        raise raised(answered(status, code))
    assert type(caught.value) is kind
    shown = "".join(traceback.format_exception(caught.value))
    assert "opening s3://b/t: " in shown
    assert code in shown
    assert not [secret for secret in (*TOKEN.split(), "SIGNATURE") if secret in shown]


@pytest.mark.parametrize(
    "text",
    [
        "Invalid user input: {}",
        "Dataset at path b/t was not found: {}",
        "Commit conflict: {}",
        "The operation lacked the necessary privileges to complete for path t: {}",
    ],
)
def test_no_error_tells_the_body_whatever_words_are_around_it(text: str) -> None:
    told = translated(OSError(text.format(answered("400 Bad Request", "ExpiredToken"))), "doing it")
    assert not [secret for secret in (*TOKEN.split(), "SIGNATURE") if secret in str(told)]


def test_a_request_without_a_response_is_no_fault_of_the_caller() -> None:
    text = f"LanceError(IO): Error performing GET {URL} in 2s - HTTP error: ConnectionRefused"
    told = translated(ValueError(text), "scanning t")
    assert type(told) is StoreError
    assert str(told).endswith("1.manifest in 2s - HTTP error: ConnectionRefused")


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(MissingEntry, match=r"^mine$"), lance_errors("doing it"):
        raise MissingEntry("mine")


def test_f16_an_interrupt_that_lance_noticed_is_no_error_of_the_caller() -> None:
    """Found by real signals during an insert: it was told as `InvalidInput`."""
    with pytest.raises(KeyboardInterrupt), lance_errors("scanning /t"):
        raise ValueError("External error: KeyboardInterrupt: , /src/scanner.rs:12:3")
