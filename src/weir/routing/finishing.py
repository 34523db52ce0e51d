"""Finishes what statements over several shards left open: one way for upkeep, reruns and others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from weir.errors import SealedShard
from weir.records.statements import OpenStatement, Share, StatementRecords, Statements
from weir.routing.core import CONCURRENCY, Core
from weir.routing.shards import Shard, unregistered_writer
from weir.routing.statements import abort, await_ended, raise_mark

logger = logging.getLogger("weir.routing")


def finish(core: Core, concerns: Callable[[OpenStatement], bool] = lambda _: True) -> Statements:
    """Wait shortly for the statements that are open now, then abort or complete them.

    Returns the latest record. One list when none is open.
    """
    latest = StatementRecords(core.store, core.env).load()
    waiting = {one.id for one in latest.of(core.record.table_id) if concerns(one)}

    def end(one: OpenStatement) -> None:
        if one.is_decided:
            complete(core, one)
        elif abort(core, one):
            end_marks(core, one)

    return await_ended(core, lambda one: one.id in waiting, end) if waiting else latest


def is_quiet_since(core: Core, closed: int) -> bool:
    """True when no statement was decided since `finish` found that many closed.

    Otherwise its rows may be in some logs and not in others. One list, one get.
    """
    latest = StatementRecords(core.store, core.env).load()
    decided = any(one.is_decided for one in latest.of(core.record.table_id))
    return not decided and latest.closed == closed


def complete(core: Core, one: OpenStatement) -> None:
    """Put a decided statement into every log that it is not in yet, and close it."""
    config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())

    def put(share: Share) -> None:
        shard = Shard(core, share.shard, share.value, is_routed=False)
        try:
            with core.opening(share.shard):
                unregistered_writer(core, shard, config).close()  # its owner settles it
        except SealedShard:
            return  # settled by the claim that sealed it

    core.env.threads.map(put, list(one.shares), workers=CONCURRENCY)
    core.env.failpoint("statement.completed")
    close(core, one)


def close(core: Core, one: OpenStatement) -> None:
    """Record that the statement is in every log."""
    StatementRecords(core.store, core.env).close(one)
    logger.info("statement.done table=%s id=%s shards=%d", core.uri, one.id, len(one.shares))
    end_marks(core, one)


def end_marks(core: Core, one: OpenStatement) -> None:
    """Tell readers and owners of its shards that the statement is over. Others do it later."""
    core.env.threads.map(
        lambda share: raise_mark(core, share.shard, one.mark + 1),
        list(one.shares),
        workers=CONCURRENCY,
    )
