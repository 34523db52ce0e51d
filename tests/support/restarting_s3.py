"""An S3 server that can be killed and restarted on its stored data."""

import time
from typing import ClassVar

from weir.testing.seaweed import SeaweedServer

# The supervisor of `SeaweedServer`, with the commands `kill` and `start` until the pipe closes.
_SUPERVISOR = """
exec 3<&0
serve() { "$@" </dev/null 3<&- & server=$!; }
serve "$@"
while read -r word <&3; do
  case $word in
    kill) kill -9 $server; wait $server ;;
    start) serve "$@" ;;
  esac
done
kill -9 $server
wait $server
cd /
rm -rf -- "$WEIR_S3_DATA"
for port in $WEIR_S3_PORTS; do rm -f /tmp/seaweedfs-*-"$port".sock; done
"""


class RestartingServer(SeaweedServer):
    """A `SeaweedServer` with the same ports, credentials and data after `kill` and `revive`."""

    supervisor: ClassVar[str] = _SUPERVISOR

    def kill(self) -> None:
        """Kill the server with SIGKILL, in the middle of any request."""
        self._say("kill")

    def revive(self, timeout: float = 60.0) -> float:
        """Start the server again; returns the seconds until it answered."""
        began = time.monotonic()
        self._say("start")
        problem = self._wait_until_ready(began + timeout)
        assert problem is None, problem
        return time.monotonic() - began

    def _say(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
