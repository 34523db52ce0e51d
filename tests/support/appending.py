"""A client process that appends: `python appending.py URI FIRST COUNT [APP]`.

It appends COUNT rows from FIRST on, one put each (or `put_once` batches, each tried twice), prints
`done`, and closes when it reads a line. It prints the shards that it wrote to and was fenced at.
"""

import subprocess
import sys
from typing import Self

import weir


def main() -> None:
    """Append, tell, and wait for a line."""
    uri, first, count, *app = sys.argv[1:]
    with weir.open(uri).writer() as writer:
        for n in range(int(first), int(first) + int(count)):
            row = [{"id": n, "v": "process"}]
            for _ in app * 2:
                writer.put_once(row, app=app[0], version=n)
            if not app:
                writer.put(row)
        print("done", *(str(shard) for shard in writer.shards), flush=True)
        sys.stdin.readline()
        print("fenced", *(str(shard) for shard in writer.fenced), flush=True)


class Appending:
    """Such a process, for tests."""

    def __init__(self, table: weir.Table, first: int, count: int, *app: str) -> None:
        command = [sys.executable, __file__, table.uri, str(first), str(count), *app]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def done(self) -> list[str]:
        """Wait until all rows are acknowledged; the shards they went to."""
        assert self.process.stdout is not None
        word, *shards = self.process.stdout.readline().split()
        assert word == "done", word
        return shards

    def leave(self) -> list[str]:
        """Let it close; the shards where it was fenced."""
        told, _ = self.process.communicate("\n")
        assert self.process.returncode == 0, told
        return told.split()[1:]


if __name__ == "__main__":
    main()
