"""The chain `_weir/statements`: the statements over several shards that are under way (P-8).

A statement is proposed, and then decided or aborted: whichever record comes first counts. It leaves
the chain when it is aborted, or when its rows are in every log. At most one touches a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from weir.env import Env
from weir.errors import CommitConflict
from weir.format import paths
from weir.format.sharding import Value
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store

NAMES_KEPT_SECONDS: Final = 86_400.0
"""How long a statement that was done is recognized by the id that its caller gave it."""


STAGED_SECONDS_MAX: Final = 20 * 3600.0
"""Older staged rows are decided by no statement: gc collects them after a day."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """What a statement writes to one shard."""

    app: str
    """The application of its exactly-once tokens; the batch numbers are those of the pieces."""
    shard: UUID
    value: Value
    pieces: tuple[tuple[str, ...], ...]
    """Staged files; those of a piece become one entry."""
    checked: int = 0
    """No other entry up to that position is newer than what the statement read."""


class OpenStatement(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One statement that is under way."""

    id: UUID
    number: int
    """Of the record that proposed it: orders the marks of its shards."""
    table: UUID
    """A statement of a table that was dropped here counts for nothing (C-16)."""
    shares: tuple[Share, ...]
    is_decided: bool = False
    name: str | None = None
    """By which a rerun recognizes it."""

    def share_of(self, shard: UUID) -> Share | None:
        """What it writes to that shard; None: nothing."""
        return next((share for share in self.shares if share.shard == shard), None)

    def touches(self, shards: Collection[UUID]) -> bool:
        """Whether it writes to one of these shards."""
        return any(share.shard in shards for share in self.shares)

    @property
    def mark(self) -> int:
        """What the mark of its shards is at least while it may be open."""
        return 2 * self.number


class Statements(Record, frozen=True):
    """One record: all that are under way."""

    KIND: ClassVar[str] = "statements record"
    open: tuple[OpenStatement, ...] = ()
    closed: int = 0
    """How many that were decided are in every log by now. A read during which it rises starts
    over."""
    named: tuple[tuple[str, float], ...] = ()
    """The names of those done in the last day, and when."""

    def of(self, table: UUID) -> tuple[OpenStatement, ...]:
        """Those of that table."""
        return tuple(one for one in self.open if one.table == table)

    def find(self, id: UUID) -> OpenStatement | None:
        """The one with that id, unless it was aborted or is done."""
        return next((one for one in self.open if one.id == id), None)

    def is_done(self, name: str) -> bool:
        """True if a statement of that name was done."""
        return any(known == name for known, _ in self.named)

    def touching(self, table: UUID, shards: Collection[UUID]) -> list[OpenStatement]:
        """Those that write to one of these shards."""
        return [one for one in self.of(table) if one.touches(shards)]


def is_open_mark(mark: int) -> bool:
    """Whether a shard's mark says that a statement may be under way in it; odd ones are over."""
    return mark > 0 and mark % 2 == 0


class StatementRecords:
    """Reads the chain of one table, and makes its transitions."""

    def __init__(self, store: Store, env: Env) -> None:
        self._env = env
        self._chain = RecordChain(store, paths.statement_chain(), Statements)

    def load(self) -> Statements:
        """The latest record. One list, one get if there is one."""
        return self._chain.latest() or Statements()

    def propose(self, draft: OpenStatement) -> OpenStatement | None:
        """Open the statement; None, with nothing written, while another touches its shards, or if
        one of its name is open or done."""
        shards = {share.shard for share in draft.shares}

        def change(found: Statements) -> Statements:
            known = found.of(draft.table)
            is_named = draft.name is not None and (
                found.is_done(draft.name) or any(one.name == draft.name for one in known)
            )
            if is_named or found.touching(draft.table, shards):
                return found
            return replace(found, open=(*known, replace(draft, number=found.seq + 1)))

        return self._update(change).find(draft.id)

    def decide(self, checked: OpenStatement, *, staged_since: float) -> bool:
        """Commit the statement; False if it was aborted.

        Its files were staged from that time on. gc lists old files, and then reads which of them
        open statements name: one that was proposed after that must not name a file that was old
        before. Both times are the store's (F-18).
        """

        def change(found: Statements) -> Statements:
            rest = tuple(one for one in found.open if one.id != checked.id)
            if len(rest) == len(found.open):
                return found
            if found.written - staged_since > STAGED_SECONDS_MAX:  # guard: P-8
                raise CommitConflict(
                    "the rows of this statement were staged almost a day ago, after which gc"
                    " collects them; nothing was written, run the statement again"
                )
            return replace(found, open=(*rest, replace(checked, is_decided=True)))

        latest = self._update(change).find(checked.id)
        return latest is not None and latest.is_decided

    def abort(self, one: OpenStatement) -> bool:
        """Withdraw the statement; False if it is decided and not closed."""

        def change(found: Statements) -> Statements:
            rest = (other for other in found.open if other.id != one.id or other.is_decided)
            return replace(found, open=tuple(rest))

        return self._update(change).find(one.id) is None

    def close(self, one: OpenStatement) -> None:
        """Its rows are in every log."""

        def change(found: Statements) -> Statements:
            if found.find(one.id) is None:
                return found
            rest = tuple(other for other in found.open if other.id != one.id)
            return self._named(replace(found, open=rest, closed=found.closed + 1), one.name)

        self._update(change)

    def done(self, name: str) -> None:
        """A statement of that name found nothing to write."""
        self._update(lambda found: self._named(found, name))

    def _named(self, found: Statements, name: str | None) -> Statements:
        if name is None:
            return found
        now = self._env.clock.wall()
        kept = [(old, at) for old, at in found.named if at > now - NAMES_KEPT_SECONDS]
        return replace(found, named=(*kept, (name, now)))

    def _update(self, change: Callable[[Statements], Statements]) -> Statements:
        def changed(found: Statements | None) -> Statements | None:
            before = found or Statements()
            after = change(before)
            return None if after == before else after

        busy = "others changed the record of statements at every attempt; try again"
        return self._chain.update(changed, self._env, busy) or Statements()
