"""Faults around real processes: the server dies, the network misbehaves, the disk is full, the
credentials expire. Clients log the answers they got, and a reader compares."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.kill.test_kill import Client, check, told
from tests.support.bad_proxy import BadProxy
from tests.support.restarting_s3 import RestartingServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("batch", pa.int64()), ("size", pa.int64())])
ROOT = Path(__file__).parent.parent.parent
FULL_DISK = ROOT / "tests" / "support" / "full_disk.py"
LONGER = int(os.environ.get("WEIR_FAULT_ROUNDS", "1"))
"""Factor on the duration that the ordinary suite uses."""

pytestmark = [pytest.mark.kill, pytest.mark.slow]


def make(uri, options):
    return weir.create(uri, SCHEMA, primary_key="id", storage_options=options)


def acks(clients):
    return len(told(clients)[1])


def check_when_up(table, clients):
    """Check with retries: a restarted server answers before all its parts are up."""
    end = time.monotonic() + 40
    while True:
        try:
            return check(table, clients)
        except weir.StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.fixture
def server():
    with RestartingServer() as running:
        running.make_bucket("weir-test")
        yield running


def test_a_server_killed_in_the_middle_of_puts_loses_nothing_acknowledged(server, tmp_path):
    uri, options = "s3://weir-test/killed", server.storage_options()
    table = make(uri, options)
    clients = [Client(uri, options, tmp_path, 0, "tiny")]
    try:
        clients[0].go()
        for round_number in range(2 * LONGER):
            clients[-1].wait_for("ack", 20 * (round_number + 1))
            server.kill()
            server.revive()
            check_when_up(table, clients)
            if clients[-1].process.poll() is not None:  # the client gave up, which is allowed
                clients.append(Client(uri, options, tmp_path, len(clients), "durable"))
                clients[-1].go()
        clients[-1].wait_for("ack", 20 * 2 * LONGER + 5)
        assert check_when_up(table, clients) >= 40
    finally:
        for client in clients:
            client.end()
    again = weir.open(uri, storage_options=options)
    with again.shard(None).writer() as writer:
        writer.put([{"id": -1, "batch": -1, "size": 1}])
    assert -1 in again.scan().to_table()["batch"].to_pylist()


RATES = {"delay": 0.05, "cut before": 0.04, "cut after": 0.04, "twice": 0.08}


@pytest.mark.parametrize("mode", ["durable", "wal-only"])
def test_a_wire_that_delays_cuts_and_repeats_loses_and_doubles_nothing(s3, tmp_path, mode):
    uri = f"s3://weir-test/wire-{mode}"
    options = s3.storage_options()
    table = make(uri, options)  # the reader does not go through the proxy
    port = int(options["aws_endpoint"].rpartition(":")[2])
    clients = []
    with BadProxy(port, seed=7, rates=RATES) as proxy:
        bent = {**options, "aws_endpoint": proxy.endpoint}
        end = time.monotonic() + 8 * LONGER
        try:
            while time.monotonic() < end and (acks(clients) < 60 or LONGER > 1):
                clients.append(Client(uri, bent, tmp_path, len(clients), mode))
                clients[-1].go()
                clients[-1].wait_for("ack", 60 * LONGER)
                check(table, clients)
            assert check(table, clients) >= 20
            assert all(proxy.fired[kind] for kind in RATES), proxy.fired
        finally:
            for client in clients:
                client.end()
    check(table, clients)


def test_credentials_that_expire_midway_end_a_writer_with_a_word_and_nothing_lost(s3, tmp_path):
    uri, options = "s3://weir-test/expiring", s3.storage_options()
    table = make(uri, options)
    port = int(options["aws_endpoint"].rpartition(":")[2])
    with BadProxy(port, seed=1, rates={}) as proxy:
        clients = [Client(uri, {**options, "aws_endpoint": proxy.endpoint}, tmp_path, 0, "durable")]
        try:
            clients[0].go()
            clients[0].wait_for("ack", 10)
            proxy.expired = True
            began = time.monotonic()
            clients[0].wait_for("end")
            assert time.monotonic() - began < 10, "no storm of retries for a refusal"
            ended = [line for line in clients[0].lines() if line[0] == "end"]
            assert ended in (
                [["end", "StoreDenied"]],
                [["end", "WriterClosed"]],
                [["end", "UnknownOutcome"]],
            )
            requests = proxy.fired["expired"]
            assert requests < 20, requests
            check(table, clients)
            proxy.expired = False  # as if renewed; a restarted process picks them up
            clients.append(
                Client(uri, {**options, "aws_endpoint": proxy.endpoint}, tmp_path, 1, "durable")
            )
            clients[1].go()
            clients[1].wait_for("ack", 10)
            assert check(table, clients) >= 20
        finally:
            for client in clients:
                client.end()


def small_disk(folder):
    """The command on a small disk of its own, or None if an unprivileged user cannot mount one."""
    if shutil.which("unshare") is None:
        return None
    able = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if able.returncode:
        return None
    mount = f'mount -t tmpfs -o size=8m tmpfs "{folder}" && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mount, "sh", sys.executable, str(FULL_DISK), str(folder)]


@pytest.mark.parametrize("kind", ["small disk", "small files"])
def test_a_full_disk_refuses_before_the_acknowledgement_and_nothing_is_lost(tmp_path, kind):
    command = [sys.executable, str(FULL_DISK), str(tmp_path), "6000"]
    if kind == "small disk":
        found = small_disk(tmp_path)
        if found is None:
            pytest.skip("no user namespaces here; the limit on file sizes stands in")
        command = found
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["errors"], "the disk never was full"
    assert all(e.partition(":")[0] in {"StoreError", "WriterClosed"} for e in result["errors"])
    assert set(result["acked"]) <= set(result["seen"])
    assert len(result["seen"]) <= len(result["acked"]) + 1  # the refused row may be in, but once
    assert set(result["after"]) >= {*result["acked"], -1}


def test_frozen_through_a_restart_of_the_server_a_writer_goes_on_or_says_why(server, tmp_path):
    uri, options = "s3://weir-test/frozen", server.storage_options()
    table = make(uri, options)
    clients = [Client(uri, options, tmp_path, 0, "durable")]
    try:
        clients[0].go()
        clients[0].wait_for("ack", 5)
        clients[0].send(signal.SIGSTOP)
        server.kill()
        server.revive()
        check_when_up(table, clients)
        clients[0].send(signal.SIGCONT)
        clients[0].wait_for("ack", 15)
        check_when_up(table, clients)
    finally:
        for client in clients:
            client.end()
