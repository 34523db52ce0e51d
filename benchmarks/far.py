"""A TCP proxy that gives a server on loopback the latency of an object store in the region.

    python -m benchmarks.far PORT [--one-way 0.005]

Prints the port it listens on and forwards until its standard input is closed. For every line there
it prints how many HTTP requests it has forwarded. Every chunk arrives `--one-way` seconds later, in
both directions; neither chunks in flight nor connections delay each other. Bandwidth is not
limited.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable

ONE_WAY_SECONDS = 0.005
_PIECE_BYTES = 1 << 18
_REQUEST = b" HTTP/1.1\r\n"


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    one_way: float,
    look: Callable[[bytes], None],
) -> None:
    """Copy one direction; deliver each chunk `one_way` seconds after it arrived."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, piece = await under_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            look(piece)
            under_way.put_nowait((loop.time() + one_way, piece))
    under_way.put_nowait((loop.time() + one_way, b""))
    with contextlib.suppress(OSError):
        await delivery


async def _serve(port: int, one_way: float) -> None:
    requests = 0

    def asked(piece: bytes) -> None:
        nonlocal requests
        requests += piece.count(_REQUEST)

    def answer() -> None:
        for _ in sys.stdin:
            print(requests, flush=True)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        for end in (writer, back):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _carry(reader, back, one_way, asked),
            _carry(there, writer, one_way, lambda _piece: None),
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, answer)
    os._exit(0)  # the peers of connections that are still open are gone


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--one-way", type=float, default=ONE_WAY_SECONDS)
    asked = parser.parse_args()
    asyncio.run(_serve(asked.port, asked.one_way))


if __name__ == "__main__":
    main()
