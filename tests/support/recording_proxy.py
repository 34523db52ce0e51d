"""A proxy in front of an S3 server that records the requests on the wire."""

import http.server
from typing import NamedTuple

from tests.support.bad_proxy import BadProxy


class Seen(NamedTuple):
    """One request."""

    method: str
    path: str
    if_none_match: str | None


class RecordingProxy(BadProxy):
    """Forwards everything; `seen` holds the requests in order of arrival."""

    def __init__(self, port: int) -> None:
        super().__init__(port, seed=0, rates={})
        self.seen: list[Seen] = []

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        headers = request.headers
        self.seen.append(Seen(request.command, request.path, headers.get("if-none-match")))
        super()._serve(request)
