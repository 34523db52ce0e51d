"""URIs and options: one spelling kept, both spellings accepted, unknown options refused by name."""

from pathlib import Path

import pytest

from weir.errors import InvalidInput
from weir.store.local import LocalStore
from weir.store.memory import forget
from weir.store.objects import ObjStore
from weir.store.open import lance_options, normalize, open_bare, open_store
from weir.store.retry import RetryingStore

S3 = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_region": "us-east-1"}


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("/data/x/", "/data/x"),
        ("/data/../x", "/x"),
        ("file:///data/a%20b/", "/data/a b"),
        ("file://localhost/x", "/x"),
        ("file:/data/x", "/data/x"),
        ("FILE:/data/a%20b", "/data/a b"),
        ("s3a://bucket/x/", "s3://bucket/x"),
        ("S3N://bucket/x", "s3://bucket/x"),
        ("memory://name/", "memory://name"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://b/x", "gs://b/x"),
        ("az://c/x", "az://c/x"),
        ("abfss://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
    ],
)
def test_uris_have_one_spelling(uri, kept):
    assert normalize(uri) == kept


def test_relative_paths_are_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert normalize("x/y") == str(tmp_path / "x" / "y")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("ftp://host/x", "'ftp'"),
        ("", "empty"),
        ("s3:///x", "no bucket"),
        ("s3:/bucket/x", "two slashes"),
        ("S3A:bucket/x", "two slashes"),
        ("file://host/x", "'host'"),
        ("s3://key:secretpart@bucket/x", "credentials"),
        ("s3://bucket/x?versionId=1", "query"),
    ],
)
def test_bad_uris_are_refused(uri, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        open_store(uri)
    assert "secretpart" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "given"),
    [
        ("s3://b/x", {"access_key_id": "k", "secret_access_key": "s", "endpoint_url": "http://e"}),
        ("s3://b/x", {**S3, "aws_endpoint": "http://e", "aws_session_token": "t"}),
        ("s3://b/x", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "region": "r"}),
        ("s3://b/x", {**S3, "virtual_hosted_style_request": "false", "aws_allow_http": "true"}),
        ("s3://b/x", {**S3, "allow_http": True, "timeout": "9s", "client_max_retries": 3}),
        ("gs://b/x", {"google_storage_token": "t"}),
        ("gs://b/x", {"bearer_token": "t", "google_base_url": "http://e"}),
        ("az://c/x", {"account_name": "a", "azure_storage_account_key": "a2V5"}),
        ("abfss://c@acc.dfs.core.windows.net/x", {"azure_storage_account_key": "a2V5"}),
    ],
)
def test_both_spellings_are_taken(uri, given):
    store = open_bare(uri, given)
    assert isinstance(store, ObjStore)
    assert store.uri == uri


@pytest.mark.parametrize("uri", ["s3://b", "gs://b", "az://c", "/some/where", "memory://n"])
def test_unknown_option_is_refused_by_name(uri):
    with pytest.raises(InvalidInput, match="'acess_key'") as caught:
        open_store(uri, {"acess_key": "secretvalue"})
    assert "secretvalue" not in str(caught.value)


def test_options_of_another_store_are_left_out(tmp_path):
    open_store(str(tmp_path), S3)
    open_store("s3://b", S3 | {"google_base_url": "http://e", "weir_fsync": "true"})


def test_values_must_be_text():
    with pytest.raises(InvalidInput, match="aws_region"):
        open_store("s3://b", {"aws_region": None})


def test_opening_writes_nothing(tmp_path):
    store = open_store(str(tmp_path / "new"))
    assert isinstance(store, RetryingStore)
    assert list(store.list("")) == []
    assert not Path(store.uri).exists()


def test_fsync_is_an_option(tmp_path):
    assert "fsync=True" in repr(open_bare(str(tmp_path), {"weir_fsync": "true"}))
    assert "fsync=False" in repr(open_bare(str(tmp_path)))
    assert isinstance(open_bare(str(tmp_path)), LocalStore)
    with pytest.raises(InvalidInput, match="weir_fsync"):
        open_bare(str(tmp_path), {"weir_fsync": "maybe"})


def test_memory_stores_are_shared_by_name():
    open_store("memory://shared-by-name/a").put("x", b"1")
    assert open_store("memory://shared-by-name").get("a/x").data == b"1"
    forget("shared-by-name")
    assert open_store("memory://shared-by-name").head("a/x") is None


def test_lance_gets_its_spelling_without_ours():
    assert lance_options("s3://b", S3 | {"weir_fsync": "true", "aws_allow_http": True}) == S3 | {
        "allow_http": "true"
    }
    assert lance_options("gs://b", {"bearer_token": "t"}) == {"google_storage_token": "t"}
    assert lance_options("/x", S3) == S3  # a local clone may share files with a parent elsewhere
    assert lance_options("/x", {}) is None
    assert lance_options("s3://b", None) is None
