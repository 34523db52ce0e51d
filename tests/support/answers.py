"""An HTTP server with one response to every request, such as the errors of clouds."""

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Answers:
    """The response of the server, and the requests it received."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def say(self, status: int, code: str = "", **headers: str) -> None:
        """Set the response from now on, with `code` in the XML that S3, GCS and Azure send."""
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.asked = []

    def s3_options(self, **more: str) -> dict[str, str]:
        """Storage options to use the server as S3."""
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "hunter2secret",
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        } | more

    def gs_options(self) -> dict[str, str]:
        """Storage options to use the server as GCS."""
        return {
            "google_base_url": self.endpoint,
            "google_storage_token": "hunter2token",
            "allow_http": "true",
        }

    def az_options(self) -> dict[str, str]:
        """Storage options to use the server as Azure Blob Storage."""
        return {
            "azure_storage_account_name": "devstoreaccount1",
            "azure_storage_account_key": "aHVudGVyMnNlY3JldA==",
            "azure_endpoint": f"{self.endpoint}/devstoreaccount1",
            "allow_http": "true",
        }


@contextmanager
def answering() -> Iterator[Answers]:
    """Run the server for one test."""
    told = Answers()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            told.asked.append((self.command, self.path))
            body = b"" if self.command == "HEAD" else told.body
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
