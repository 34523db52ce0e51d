"""One replica of the service: takes the rows of its own shards, and refuses all others.

    python replica.py TABLE ORDINAL REPLICAS [HOST:PORT]

Its number and the number of replicas give its shards, as in a StatefulSet. Without an address it
takes a free port of this machine. It prints its port once it is ready.
"""

import contextlib
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import weir


class Replica(ThreadingHTTPServer):
    """Serves rows; a writer is safe to share between the threads of its requests."""

    daemon_threads = False  # requests under way are answered before the writer is closed

    def __init__(self, table: weir.Table, ordinal: int, replicas: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)), Handler)
        assert isinstance(table.sharding, weir.Bucket)
        self.writer = table.writer(shards=range(ordinal, table.sharding.num, replicas))


class Handler(BaseHTTPRequestHandler):
    server: Replica

    def do_POST(self) -> None:
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self.server.writer.put(row)  # durable when it returns
        except weir.NotOwner as error:
            self.answer(421, {"shard": error.value})  # nothing was claimed; the proxy asks again
        except weir.WeirError as error:
            self.answer(400 if error.kind == "invalid" else 503, {"error": str(error)})
        else:
            self.answer(200, {})

    def do_GET(self) -> None:
        """`/metrics` for Prometheus; any other path is the health: a replica that lost a shard to
        another one should be replaced."""
        if self.path == "/metrics":
            self.send(200, weir.metrics(), "text/plain; version=0.0.4")
            return
        writer = self.server.writer
        fenced = [str(shard) for shard in writer.fenced]
        self.answer(503 if fenced else 200, {"fenced": fenced, "of": len(writer.shards)})

    def answer(self, status: int, body: dict[str, object]) -> None:
        self.send(status, json.dumps(body), "application/json")

    def send(self, status: int, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        with contextlib.suppress(OSError):  # whoever asked has gone
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""


def main(uri: str, ordinal: int, replicas: int, address: str = "127.0.0.1:0") -> None:
    weir.metrics()  # measure from now on
    with Replica(weir.open(uri), ordinal, replicas, address) as server:
        # `shutdown` waits for the loop below, which the handler interrupts.
        stop = threading.Thread(target=server.shutdown)
        signal.signal(signal.SIGTERM, lambda *_: stop.start())
        print(server.server_port, flush=True)
        server.serve_forever(poll_interval=0.02)
    server.writer.close()  # in one step: the next owner opens the shards without waiting


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
