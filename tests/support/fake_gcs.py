"""A fake of Google Cloud Storage, in this process: the part of the XML API that weir uses.

It is a fake: weir's authors, not Google, wrote it from Google's documentation, and it proves only
that weir sends and understands what that documentation says. Objects are kept in memory, one lock
makes each request atomic, and a create is a PUT with `x-goog-if-generation-match: 0`, refused with
412 if the object exists.

    with FakeGcs() as server:
        place = f"{server.make_bucket('lake')}/table"
        weir.create(place, schema, storage_options=server.storage_options())
"""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from types import TracebackType
from typing import ClassVar, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE: Final = 1000
_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    generation: int
    written: float


class FakeGcs:
    """The server. A subclass that ignores conditions is a store that weir must refuse at create."""

    keeps_conditions: ClassVar[bool] = True

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.generation = 0
        self.requests: list[tuple[str, str]] = []
        self._server: http.server.ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens, as `http://host:port`."""
        assert self._server is not None, "the server is not running"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def storage_options(self) -> dict[str, str]:
        """The options with which Lance and weir reach it."""
        return {
            "google_base_url": self.endpoint,
            "google_storage_token": "fake",
            "allow_http": "true",
        }

    def make_bucket(self, name: str) -> str:
        """Create the bucket unless it is there, and return its URI."""
        with self.lock:
            self.buckets.setdefault(name, {})
        return f"gs://{name}"

    def start(self) -> Self:
        """Listen on a free port of the loopback."""
        handler = type("Handler", (_Handler,), {"state": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening; what was stored is gone."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def write(self, bucket: str, name: str, data: bytes, condition: str | None) -> _Object | None:
        """Store the object; None when the condition (a generation, 0 for absent) does not hold."""
        with self.lock:
            there = self.buckets[bucket].get(name)
            if condition is not None and self.keeps_conditions:
                current = 0 if there is None else there.generation
                if int(condition) != current:
                    return None
            self.generation += 1
            made = _Object(data, self.generation, time.time())
            self.buckets[bucket][name] = made
            return made


class _Handler(http.server.BaseHTTPRequestHandler):
    state: ClassVar[FakeGcs]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _parts(self) -> tuple[str, str, dict[str, str]]:
        parts = urlsplit(self.path)
        bucket, _, name = unquote(parts.path.lstrip("/")).partition("/")
        query = {
            key: found[0] for key, found in parse_qs(parts.query, keep_blank_values=True).items()
        }
        self.state.requests.append((self.command, self.path))
        return bucket, name, query

    def _say(self, status: int, body: bytes = b"", headers: Mapping[str, str] = _NONE) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self._say(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _described(self, made: _Object) -> dict[str, str]:
        return {
            "ETag": f'"{made.generation:x}"',
            "x-goog-generation": str(made.generation),
            "Last-Modified": formatdate(made.written, usegmt=True),
        }

    def do_PUT(self) -> None:
        """An object, or a part of a multipart upload."""
        bucket, name, query = self._parts()
        body = self._body()
        state = self.state
        if bucket not in state.buckets:
            return self._error(404, "NoSuchBucket")
        if "uploadId" in query:
            with state.lock:
                state.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self._say(200, headers={"ETag": f'"{len(body):x}"'})
        made = state.write(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        if made is None:
            return self._error(412, "PreconditionFailed")
        return self._say(200, headers=self._described(made))

    def do_POST(self) -> None:
        """Begin or complete a multipart upload."""
        bucket, name, query = self._parts()
        self._body()
        state = self.state
        if "uploads" in query:
            with state.lock:
                upload = f"u{len(state.uploads)}"
                state.uploads[upload] = {}
            xml = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
            return self._say(200, f"{xml}</InitiateMultipartUploadResult>".encode())
        with state.lock:
            parts = state.uploads.pop(query["uploadId"])
        whole = b"".join(parts[number] for number in sorted(parts))
        made = state.write(bucket, name, whole, None)
        assert made is not None, "no condition was given"
        xml = f"<CompleteMultipartUploadResult><ETag>&quot;{made.generation:x}&quot;</ETag>"
        body = f"{xml}</CompleteMultipartUploadResult>".encode()
        return self._say(200, body, self._described(made))

    def do_GET(self) -> None:
        """An object or a range of it, or a listing."""
        bucket, name, query = self._parts()
        state = self.state
        if bucket not in state.buckets:
            return self._error(404, "NoSuchBucket")
        if not name:
            return self._list(bucket, query)
        found = state.buckets[bucket].get(name)
        if found is None:
            return self._error(404, "NoSuchKey")
        described = self._described(found)
        wanted = self.headers.get("range")
        if wanted is None:
            return self._say(200, found.data, described)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        size = len(found.data)
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) if last and first else size - 1, size - 1)
        if start >= size:
            return self._error(416, "InvalidRange")
        described["Content-Range"] = f"bytes {start}-{end}/{size}"
        return self._say(206, found.data[start : end + 1], described)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        """One object, or an upload that is given up."""
        bucket, name, query = self._parts()
        state = self.state
        if "uploadId" in query:
            with state.lock:
                state.uploads.pop(query["uploadId"], None)
            return self._say(204)
        with state.lock:
            gone = state.buckets.get(bucket, {}).pop(name, None)
        return self._say(204) if gone is not None else self._error(404, "NoSuchKey")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        with self.state.lock:
            objects = dict(self.state.buckets[bucket])
        entries: dict[str, str] = {}
        for name in sorted(objects):
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                entries[folder] = (
                    f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                )
                continue
            made = objects[name]
            entries[name] = (
                f"<Contents><Key>{escape(name)}</Key><Size>{len(made.data)}</Size>"
                f"<LastModified>{_iso(made.written)}</LastModified>"
                f"<ETag>&quot;{made.generation:x}&quot;</ETag></Contents>"
            )
        names = [name for name in sorted(entries) if name > after]
        page = names[: int(query.get("max-keys") or _PAGE)]
        more = ""
        if len(names) > len(page):
            token = escape(page[-1])
            more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        body = "".join(entries[name] for name in page)
        self._say(200, f"<ListBucketResult>{more}{body}</ListBucketResult>".encode())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
