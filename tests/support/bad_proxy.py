"""A loopback proxy in front of an S3 server that delays, drops and repeats whole requests."""

import http.client
import http.server
import random
import threading
import time
from collections import Counter
from typing import Any, Self

EXPIRED = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>ExpiredToken</Code>"
    b"<Message>The provided token has expired.</Message></Error>"
)
_HOPS = {"connection", "content-length", "keep-alive", "transfer-encoding"}


class BadProxy:
    """Serves in its own threads inside a `with` block; the seed determines every fault."""

    def __init__(self, port: int, seed: int, rates: dict[str, float]) -> None:
        """`rates`: the chance of "delay", "cut before", "cut after" and "twice" per request."""
        self._upstream = port
        self._rng = random.Random(seed)
        self._rates = rates
        self._lock = threading.Lock()
        self.fired: Counter[str] = Counter()
        self.expired = False
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

            def serve(self) -> None:
                proxy._serve(self)

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self.serve
                raise AttributeError(name)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _draw(self) -> tuple[str, float]:
        with self._lock:
            roll = self._rng.random()
            for kind, rate in self._rates.items():
                roll -= rate
                if roll < 0:
                    self.fired[kind] += 1
                    return kind, self._rng.uniform(0.02, 0.3)
        return "ok", 0.0

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        if self.expired:
            self.fired["expired"] += 1
            self._answer(request, 403, [("content-type", "application/xml")], EXPIRED)
            return
        kind, seconds = self._draw()
        if kind == "cut before":
            request.close_connection = True
            return
        try:
            if kind == "delay":
                time.sleep(seconds)
            answer = self._forward(request, body)
            if kind == "twice":
                answer = self._forward(request, body)
        except (OSError, http.client.HTTPException):
            request.close_connection = True
            return
        if kind == "cut after":
            request.close_connection = True
            return
        self._answer(request, *answer)

    def _forward(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=30)
        try:
            upstream.putrequest(
                request.command, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            upstream.close()

    @staticmethod
    def _answer(
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> None:
        request.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and request.command == "HEAD":
                length = value
            elif name.lower() not in _HOPS:
                request.send_header(name, value)
        request.send_header("content-length", length)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
