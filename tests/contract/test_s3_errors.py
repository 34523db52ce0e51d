"""Refusals of a real S3 server become clear errors of the right type, and nothing is written."""

import uuid

import pytest

from weir.errors import InvalidInput, StoreDenied
from weir.store.open import open_store
from weir.store.probe import probe


def calls(store):
    return (
        lambda: store.put_if_absent("a", b"1"),
        lambda: store.put("a", b"1"),
        lambda: store.get("a"),
        lambda: list(store.list("")),
        lambda: store.list_folder(""),
        lambda: store.delete(["a"]),
        store.now,
    )


def test_missing_bucket_is_named(s3):
    store = open_store("s3://no-such-bucket/x", s3.storage_options())
    for call in calls(store):
        with pytest.raises(InvalidInput, match="'no-such-bucket'"):
            call()
    assert sum(store.requests.values()) == len(calls(store)), "never retried"


@pytest.mark.parametrize("wrong", ["aws_secret_access_key", "aws_access_key_id"])
def test_wrong_credentials_are_denied(s3, wrong):
    place = f"s3://weir-test/denied/{uuid.uuid4().hex}"
    store = open_store(place, s3.storage_options() | {wrong: "notthisone"})
    for call in calls(store):
        with pytest.raises(StoreDenied) as caught:
            call()
        assert "notthisone" not in str(caught.value)
        assert s3.access_key not in str(caught.value)
    assert sum(store.requests.values()) == len(calls(store)), "never retried"
    assert list(open_store(place, s3.storage_options()).list("")) == []


def test_the_server_keeps_put_if_absent(s3):
    store = open_store(f"s3://weir-test/probe/{uuid.uuid4().hex}", s3.storage_options())
    report = probe(store, rounds=3, creators=3)
    assert all(check.passed for check in report.checks), report
    assert list(store.list("")) == []


def test_the_stores_clock_leaves_nothing(s3):
    store = open_store(f"s3://weir-test/clock/{uuid.uuid4().hex}", s3.storage_options())
    first = store.now()
    assert store.now() >= first
    assert list(store.list("")) == []
