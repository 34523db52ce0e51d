"""Three replicas behind a proxy. Under load one is killed, one is rolled, and one is frozen and
replaced; then every row that was acknowledged is looked for.

    python run.py     # in an empty folder
"""

import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import proxy
import pyarrow as pa

import weir

REPLICAS, SHARDS, CLIENTS = 3, 6, 4
ROWS = 60
"""Rows acknowledged before each event, and after the last."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


class Fleet:
    """Starts and replaces replicas, as Kubernetes or systemd would."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.ports: dict[int, int] = {}
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, *ordinals: int) -> None:
        for ordinal in ordinals:
            script = Path(__file__).with_name("replica.py")
            command = [sys.executable, str(script), self.uri, str(ordinal), str(REPLICAS)]
            self.running[ordinal] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for ordinal in ordinals:
            printed = self.running[ordinal].stdout
            assert printed is not None
            self.ports[ordinal] = int(printed.readline())

    def stop(self, ordinal: int, how: signal.Signals) -> int:
        process = self.running.pop(ordinal)
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=30)
        return process.returncode

    def freeze(self, ordinal: int) -> int:
        """Stop a replica in its tracks, as a machine that swaps does; returns its other number."""
        other = ordinal + REPLICAS
        self.ports[other], self.running[other] = self.ports[ordinal], self.running.pop(ordinal)
        self.running[other].send_signal(signal.SIGSTOP)
        return other


class Load:
    """Clients that put rows through the proxy until they are told to stop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._acked: list[int] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        key = client
        while not self._is_over:
            status = post(self._port, row_of(key))
            with self._changed:
                if status == 200:
                    self._acked.append(key)
                self._changed.notify_all()
            key += CLIENTS

    def wait_for(self, rows: int) -> None:
        """Return when that many more rows are acknowledged."""
        with self._changed:
            wanted = len(self._acked) + rows
            if not self._changed.wait_for(lambda: len(self._acked) >= wanted, 60):
                raise SystemExit("the service stopped acknowledging rows")

    def stop(self) -> list[int]:
        self._is_over = True
        for thread in self._threads:
            thread.join()
        return self._acked


def row_of(key: int) -> dict[str, object]:
    return {"id": key, "text": f"row {key}"}


def post(port: int, row: dict[str, object]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/", json.dumps(row))
        return connection.getresponse().status
    finally:
        connection.close()


def main() -> None:
    table = weir.create("orders", SCHEMA, primary_key="id", sharding=weir.Bucket("id", SHARDS))
    fleet = Fleet(table.uri)
    try:
        fleet.start(*range(REPLICAS))
        bucket = table.shard_of(row_of(0)).value
        assert isinstance(bucket, int)
        stranger = (bucket + 1) % REPLICAS
        assert post(fleet.ports[stranger], row_of(0)) == 421  # refused, and nothing was claimed
        load = Load(proxy.start(table, fleet.ports, REPLICAS).server_port)
        load.wait_for(ROWS)
        fleet.stop(0, signal.SIGKILL)  # its clients wait until the next one has replayed its log
        fleet.start(0)
        load.wait_for(ROWS)
        assert fleet.stop(1, signal.SIGTERM) == 0  # a rolling deployment: it closes, and hands over
        fleet.start(1)
        load.wait_for(ROWS)
        frozen = fleet.freeze(2)  # perhaps in the midst of a put
        fleet.start(2)
        load.wait_for(ROWS)
        fleet.running[frozen].send_signal(signal.SIGCONT)  # it has requests left, and refuses all
        rows = [row_of(key) for key in range(ROWS)]
        for row, shard in zip(rows, table.shards_of(rows), strict=True):
            if shard.value in (2, 5):
                assert post(fleet.ports[frozen], row) == 503
        with urllib.request.urlopen(f"http://127.0.0.1:{fleet.ports[frozen]}/metrics") as page:
            assert "weir_writers_fenced_total 2\n" in page.read().decode()
        load.wait_for(ROWS)
        assert fleet.stop(frozen, signal.SIGTERM) == 0  # it owes nobody rows
        acked = load.stop()
        assert fleet.stop(2, signal.SIGTERM) == 0
    finally:
        for ordinal in list(fleet.running):
            fleet.stop(ordinal, signal.SIGTERM)
    found = table.scan().to_table().to_pylist()
    held = {row["id"]: row["text"] for row in found}
    assert len(held) == len(found), "a row is there twice"
    lost = [key for key in acked if held.get(key) != f"row {key}"]
    assert not lost, f"acknowledged and lost: {lost}"
    for number in range(SHARDS):
        claims = table.shard(number).manifest().writer_epoch
        assert claims <= 2, f"shard {number} was claimed {claims} times: replicas fought"
    print(f"{len(acked)} rows acknowledged, {len(found)} in the table, each once; 0 lost")


if __name__ == "__main__":
    main()
