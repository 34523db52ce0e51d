"""The S3 server of the suite honours the conditions that fencing relies on."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import obstore
import pyarrow as pa
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError
from obstore.store import S3Store

from tests.support.stores import StoreKind
from weir.testing.seaweed import SeaweedServer


def client(server: SeaweedServer, bucket: str = "weir-test", **changes: str) -> S3Store:
    options = server.storage_options() | changes
    # obstore wants client settings separate from store settings, and panics on a mix.
    options.pop("allow_http")
    return S3Store.from_url(f"s3://{bucket}", config=options, client_options={"allow_http": True})


@pytest.fixture
def store(s3: SeaweedServer) -> S3Store:
    return client(s3)


def test_a_second_create_is_refused(store: S3Store, request: pytest.FixtureRequest) -> None:
    key = request.node.name
    obstore.put(store, key, b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, key, b"second", mode="create")
    assert bytes(obstore.get(store, key).bytes()) == b"first"


def test_a_swap_with_a_stale_etag_is_refused(
    store: S3Store, request: pytest.FixtureRequest
) -> None:
    key = request.node.name
    stale = obstore.put(store, key, b"1")["e_tag"]
    obstore.put(store, key, b"2", mode={"e_tag": stale})
    with pytest.raises(PreconditionError):
        obstore.put(store, key, b"3", mode={"e_tag": stale})
    assert bytes(obstore.get(store, key).bytes()) == b"2"


@pytest.mark.slow  # SeaweedFS sometimes makes a loser wait a second or two for its lock
def test_of_racing_creates_one_wins(store: S3Store, request: pytest.FixtureRequest) -> None:
    def create(attempt: int) -> tuple[str, int] | None:
        key = f"{request.node.name}/{attempt // 8}"
        try:
            obstore.put(store, key, str(attempt).encode(), mode="create")
        except AlreadyExistsError:
            return None
        return key, attempt

    with ThreadPoolExecutor(8) as threads:
        winners = [won for won in threads.map(create, range(160)) if won]
    assert len(winners) == len(dict(winners)) == 20
    for key, attempt in winners:
        assert bytes(obstore.get(store, key).bytes()) == str(attempt).encode()


def test_a_missing_bucket_and_a_wrong_key_are_errors(s3: SeaweedServer) -> None:
    with pytest.raises(FileNotFoundError):
        obstore.put(client(s3, "no-such-bucket"), "key", b"")
    with pytest.raises(PermissionDeniedError):
        obstore.put(client(s3, aws_secret_access_key="wrong"), "key", b"")


def test_lance_commits_on_every_kind_of_store(table_uri: str, store_kind: StoreKind) -> None:
    options = store_kind.storage_options
    rows = pa.table({"id": [1, 2, 3]})
    lance.write_dataset(rows, table_uri, storage_options=options)
    lance.write_dataset(rows, table_uri, storage_options=options, mode="append")
    assert lance.dataset(table_uri, storage_options=options).count_rows() == 6


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "weir.testing.seaweed"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.kill
def test_the_server_dies_with_its_owner(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    endpoint = json.loads(owner.stdout.readline())["storage_options"]["aws_endpoint"]
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        owner.kill()
        # An idle connection ends when the server dies, so there is no need to poll. It is reset
        # instead if the server had not accepted it yet.
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads the server's environment")
def test_stop_leaves_no_process_and_no_files() -> None:
    with SeaweedServer() as server:
        process = server._process
        assert process is not None
        [data] = environ(process.pid, "WEIR_S3_DATA")
        assert Path(data).is_dir()
    assert process.returncode is not None
    assert not Path(data).exists()
    server.stop()


def environ(pid: int, name: str) -> list[str]:
    content = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return [os.fsdecode(v.partition(b"=")[2]) for v in content if v.startswith(f"{name}=".encode())]
