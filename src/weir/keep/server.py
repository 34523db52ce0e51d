"""Three pages for the machinery around a keeper: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput

TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: int
    body: str
    kind: str = TEXT


Pages = Mapping[str, Callable[[], Page]]


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` or `[::1]:PORT`; port 0 takes a free one."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{text!r} is no address to listen on: write HOST:PORT, e.g. :9464")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def serving(address: tuple[str, int], pages: Pages, env: Env = SYSTEM) -> Iterator[tuple[str, int]]:
    """Answer requests in the background; yields the address, with the port that was taken."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "weir"
        sys_version = ""
        timeout = 10  # a client that says nothing holds no thread for long

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            found = Page(404, "not found\n") if page is None else page()
            body = found.body.encode()
            self.send_response(found.status)
            self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has gone
                self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Scrapes are no news."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    try:
        server = Server(address, Handler)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {address[0]}:{address[1]} ({error}); choose another address"
        ) from error
    server.daemon_threads = True
    thread = env.threads.start(lambda: server.serve_forever(poll_interval=0.1), name="weir-listen")
    try:
        if thread is None:
            raise InvalidInput("cannot listen: this process may start no more threads")
        yield server.server_address[0], server.server_address[1]  # type: ignore[misc]
    finally:
        if thread is not None:
            server.shutdown()
            thread.join()
        server.server_close()
