"""A statement over several shards: all of it is in the table, or nothing.

Keeps
  P-8  proposed in the table's chain of statements, its shards marked; then every shard is claimed
       and checked by key; one record decides it: that is the commit. After it, each shard takes its
       rows by token. Reads add the rows of a decided statement that are in no log yet
       (`weir.read.snapshot`), and owners of its shards put them there (`weir.routing.statements`)
Until it is decided anybody who needs a shard may abort it, and then it is proposed again. A driver
that dies before that leaves nothing; one that dies after it has told nobody, and its statement is
in the table. The staged rows stay until gc collects them: reads that were planned may need them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from msgspec import structs

from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    SealedShard,
    UnknownOutcome,
    WeirError,
)
from weir.format import paths
from weir.format.sharding import Value
from weir.records.statements import OpenStatement, Share, StatementRecords
from weir.routing.core import CONCURRENCY, Core
from weir.routing.finishing import close, complete, end_marks, finish
from weir.routing.statements import StagedFiles, apply, raise_mark
from weir.shard.writer import ShardWriter
from weir.spark.staging import Staged, shards_at_once
from weir.spark.statement import ShardCheck, Statement, conflict
from weir.spark.writers import ShardWriters, end
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.spark")

ATTEMPTS: Final = 8
"""Times a statement is proposed again after others, who needed its shards, aborted it."""
_TURNS: Final = 64
"""Times it waits for others to end that touch its shards."""


def name_of(core: Core, statement_id: str) -> str:
    """By which the statement with that id is recognized in the chain."""
    if not statement_id.strip():
        raise InvalidInput(
            f"{core.uri}: statementId is {statement_id!r}, and every statement with an empty id"
            " would count as a rerun of the first: give each an id of its own, or leave it out"
        )
    return hashlib.sha256(statement_id.encode()).hexdigest()[:32]


def is_done(core: Core, name: str) -> bool:
    """Whether a statement of that name was done, by now: one that was decided is completed, another
    run that is at work is waited for, or aborted. One list and one get."""
    return finish(core, lambda one: one.name == name).is_done(name)


@dataclass
class _Part:
    """The rows of one shard on their way."""

    value: Value
    files: Sequence[Staged]
    reading: StagedFiles
    check: ShardCheck
    has_rows: bool = False
    since: float = float("inf")
    """When the first of its files was staged."""
    writer: ShardWriter | None = field(default=None, repr=False)

    def collect(self) -> None:
        """Take in the keys of all rows."""
        self.has_rows = self.check.collect(self._rows()) is not None

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            staged_at, rows = self.reading.read(file.path)
            self.since = min(self.since, staged_at)
            yield from rows

    def share(self, core: Core, app: str, limit: int) -> Share:
        """What is recorded of it: files that fit into one entry are one piece."""
        record = core.record  # kept: another thread may refresh that of the handle
        if any(file.routing != record.routing_version for file in self.files):
            raise conflict(core, "the table was resharded")
        pieces: list[list[str]] = []
        size = 0
        for file in self.files:
            if not pieces or size + file.bytes > limit:
                pieces.append([])
                size = 0
            pieces[-1].append(file.path)
            size += file.bytes
        return Share(
            app=app,
            shard=core.shard_of(self.value, record),
            value=self.value,
            pieces=tuple(tuple(piece) for piece in pieces),
        )


def write_whole(
    writers: ShardWriters,
    reading: StagedFiles,
    staged: dict[Value, Sequence[Staged]],
    statement: Statement,
    *,
    entry_bytes: int,
    name: str | None = None,
) -> None:
    """Write the rows of every shard, or raise `CommitConflict` with nothing written.

    With a `name`: once, however often it is run.
    """
    core = writers.core
    parts = [
        _Part(value, files, reading, ShardCheck(core, value, statement))
        for value, files in staged.items()
    ]
    workers = shards_at_once(staged.values(), entry_bytes)
    core.env.threads.map(_Part.collect, parts, workers=workers)
    parts = [part for part in parts if part.has_rows]
    if not parts:
        if name is not None and not is_done(core, name):
            StatementRecords(core.store, core.env).done(name)
        return
    for _ in core.env.attempts(ATTEMPTS, first_delay=0.05):
        one = _propose(core, parts, entry_bytes, name)
        if one is None:
            return
        if _decide(writers, parts, statement, one, entry_bytes):
            return
        logger.info("statement.again table=%s id=%s", core.uri, one.id)
    raise CommitConflict(
        f"{core.uri}: other writers took over shards of this statement {ATTEMPTS} times before all"
        " were checked. Nothing was written; run it again"
    )


def _propose(
    core: Core, parts: Sequence[_Part], limit: int, name: str | None
) -> OpenStatement | None:
    """The statement, open; None if one of its name was done. Waits for others in its shards."""
    id_ = core.env.new_id()
    app = f"{paths.JOB_APP}statement-{id_}"
    shares = tuple(part.share(core, app, limit) for part in parts)
    draft = OpenStatement(id=id_, number=0, table=core.record.table_id, shares=shares, name=name)
    wanted = {share.shard for share in shares}

    def is_in_the_way(other: OpenStatement) -> bool:
        is_same = name is not None and other.name == name
        return is_same or other.touches(wanted)

    for _ in core.env.attempts(_TURNS, longest_delay=0.2):
        opened = StatementRecords(core.store, core.env).propose(draft)
        if opened is not None:
            core.env.failpoint("statement.proposed")
            return opened
        latest = finish(core, is_in_the_way)
        if name is not None and latest.is_done(name):
            return None
    raise CommitConflict(
        f"{core.uri}: other statements changed the same shards all the time; nothing was written,"
        " run it again"
    )


def _decide(
    writers: ShardWriters,
    parts: Sequence[_Part],
    statement: Statement,
    one: OpenStatement,
    limit: int,
) -> bool:
    """Check every shard, decide, write; False if others aborted the statement before it was."""
    core = writers.core
    records = StatementRecords(core.store, core.env)
    try:
        try:
            one = _check(writers, parts, statement, one, limit)
            is_decided = records.decide(one, staged_since=min(part.since for part in parts))
        except WeirError as failed:
            if records.abort(one):
                end_marks(core, one)
                if isinstance(failed, SealedShard):
                    raise conflict(core, f"the table was resharded ({failed})") from failed
                raise
            is_decided = True  # the answer was lost, the record is there
        core.env.failpoint("statement.decided")
        if is_decided:
            _apply(core, parts, one, limit)
        else:
            end_marks(core, one)
        return is_decided
    finally:
        for part in parts:
            writer, part.writer = part.writer, None
            if writer is not None:
                end(writer)


def _check(
    writers: ShardWriters,
    parts: Sequence[_Part],
    statement: Statement,
    one: OpenStatement,
    limit: int,
) -> OpenStatement:
    """Claim and check every shard; the statement with the positions up to which they were."""
    core, threads = writers.core, writers.core.env.threads
    # A restore that began before it was proposed ends without it (K-11).
    require_settled(core, "statement")
    # Before the claims: whoever looked at a shard before its mark rose is fenced (P-8).
    threads.map(
        lambda s: raise_mark(core, s.shard, one.mark), list(one.shares), workers=CONCURRENCY
    )
    core.env.failpoint("statement.marked")
    pairs = list(zip(parts, one.shares, strict=True))
    checked = threads.map(
        lambda pair: _checked(writers, pair[0], pair[1], limit), pairs, workers=CONCURRENCY
    )
    core.env.failpoint("statement.checked")
    statement.require_base(core)
    shares = [
        structs.replace(share, checked=position)
        for share, position in zip(one.shares, checked, strict=True)
    ]
    return structs.replace(one, shares=tuple(shares))


def _checked(writers: ShardWriters, part: _Part, share: Share, limit: int) -> int:
    """Claim the shard and check it; the position up to which it was."""
    for attempt in writers.core.env.attempts(ATTEMPTS, first_delay=0.05):
        try:
            part.writer = writers.checker(part.value, limit=limit)
            break
        except (FencedError, UnknownOutcome):
            if attempt == ATTEMPTS:
                raise
    assert part.writer is not None, "F-13: the loop above claims or raises"
    if part.writer.site.shard != share.shard:
        raise conflict(writers.core, "the table was resharded")
    through = part.writer.claim.fence
    part.check.guard(share.shard, through)  # guard: P-7 test_statement
    return int(through)


def _apply(core: Core, parts: Sequence[_Part], one: OpenStatement, limit: int) -> None:
    """Put the rows into the logs. The statement is decided: whatever fails here, every durable read
    shows it from now on, and whoever comes next finishes it. So nothing is raised."""

    def write(pair: tuple[_Part, Share]) -> bool:
        part, share = pair
        assert part.writer is not None, "P-8: claimed to be checked"
        try:
            apply(part.reading, share, part.writer)
        except WeirError as failed:
            logger.info(
                "statement.again table=%s shard=%s reason=%s", core.uri, share.shard, failed
            )
            return False
        return True

    pairs = list(zip(parts, one.shares, strict=True))
    try:
        workers = shards_at_once([part.files for part in parts], limit)
        if all(core.env.threads.map(write, pairs, workers=workers)):
            close(core, one)
        else:
            complete(core, one)
    except WeirError as left:
        logger.warning("statement.left table=%s id=%s reason=%s", core.uri, one.id, left)
