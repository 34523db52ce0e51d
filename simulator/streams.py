"""An exactly-once stream in a simulated history: batches are retried, even by two at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from simulator.env import start
from simulator.roles import KEYS, to_batch
from simulator.scenarios import SHARD, Role, Run
from simulator.truth import Row, Violation
from weir.config import WriterConfig
from weir.errors import WeirError
from weir.shard.writer import ShardWriter

if TYPE_CHECKING:
    from simulator.scheduler import Actor

APP = 1_000_000
"""Session number of the rows of the stream, the same for every process that puts them."""


def streamer(run: Run, actor: Actor, role: Role) -> None:
    """Puts the stream from its driver's last known success on; several processes do so at once.

    Each batch must be in the log once, however often and wherever it was tried (P-2, O).
    """
    for _ in range(role.sessions):
        run.note(actor, "open for the stream")
        values = {**role.config, "fence_ttl": run.plan.fence_ttl}
        if run.plan.wal_only:
            values["enable_memtable"] = False
        try:
            writer = ShardWriter.open(
                run.site(actor),
                schema=run.schema,
                lake=run.lake(actor),
                config=WriterConfig(**values),
            )
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
            continue
        run.judge.opened(SHARD, writer.epoch)
        threads = [
            start(actor, lambda w=writer: _work(run, actor, role, w), "once")  # type: ignore[misc]
            for _ in range(role.threads - 1)
        ]
        _work(run, actor, role, writer)
        for thread in threads:
            thread.join()
        try:
            writer.close()
        except WeirError as error:
            run.judge.failed(SHARD, error, None, writer.epoch)


def _work(run: Run, actor: Actor, role: Role, writer: ShardWriter) -> None:
    for _ in range(role.ops):
        version = run.stream_offset + 1
        rows = stream_rows(run, version)
        put = run.judge.putting((APP, version), rows)
        try:
            fresh = writer.put_once(to_batch(rows), app="stream", version=version)
        except WeirError as error:
            run.note(actor, f"told {type(error).__name__} for batch {version} of the stream")
            run.judge.failed(SHARD, error, None, writer.epoch)
            return
        if put.id not in run.judge.seen:
            raise Violation("D", f"batch {version} of the stream is said to be in, and is not")
        run.note(actor, f"batch {version} of the stream is in, {'new' if fresh else 'known'}")
        run.judge.counts["once"] += 1
        run.stream_offset = max(run.stream_offset, version)


def stream_rows(run: Run, version: int) -> list[Row]:
    """The rows of one batch: the same at every attempt."""
    rng = random.Random(f"stream/{run.plan.seed}/{version}")
    size = rng.randint(1, 3)
    keyed = run.plan.keyed
    return [
        (rng.randrange(KEYS) if keyed else APP + version, APP, version, i, size, False)
        for i in range(size)
    ]


STREAMS = {"streamer": streamer}
