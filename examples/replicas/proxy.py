"""A proxy that sends each row to the replica that owns its shard. Only weir and the standard
library; it claims nothing, so any number of proxies may run."""

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import weir

PATIENCE = 10.0
TIMEOUT = 2.0
"""Seconds for one answer; a replica that is frozen gives none."""
PAUSE = 0.02


class Proxy(ThreadingHTTPServer):
    def __init__(self, table: weir.Table, ports: dict[int, int], replicas: int) -> None:
        """`ports` says where each replica is; whoever starts replicas changes it."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.table = table
        self.ports = ports
        self.replicas = replicas

    def forward(self, body: bytes) -> tuple[int, bytes]:
        """Ask the owner; wait while it is replaced. A row that is sent again has the same key, so
        it is there once, whether or not the replica that died had written it."""
        bucket = self.table.shard_of(json.loads(body)).value
        until = time.monotonic() + PATIENCE
        while True:
            assert isinstance(bucket, int)
            status, answer = self.ask(bucket % self.replicas, body)
            if status == 421:  # the replicas know a newer routing than this process
                self.table.refresh()
                bucket = json.loads(answer)["shard"]
            elif status != 503 or time.monotonic() > until:
                return status, answer
            time.sleep(PAUSE)

    def ask(self, replica: int, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=TIMEOUT)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 503, b"{}"  # it was killed, or is starting
        finally:
            connection.close()


class Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = self.server.forward(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""


def start(table: weir.Table, ports: dict[int, int], replicas: int) -> Proxy:
    """Serve in a thread."""
    proxy = Proxy(table, ports, replicas)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return proxy
