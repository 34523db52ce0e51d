"""An operator in a simulated history: one long-lived handle with a writer that is mostly idle.

The writer may have been fenced without noticing. Through the handle the operator makes checkpoints
and clones, restores, and undoes restores. Each must hold every row acknowledged before to any
client, and all that the handle's own writer had accepted (K-2, K-3, K-9).
"""

from __future__ import annotations

import random
from typing import Final
from uuid import UUID

from simulator.copies import Copy, check_copy
from simulator.restores import MOMENTS_MAX, final_of_restores, keep, roll_back, unfinished
from simulator.roles import Session, table_rows
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Put, Violation, index_rows
from weir.errors import StoreError, WeirError
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.checkpoints import Checkpoint
from weir.table import Table
from weir.upkeep.checkpoint import find

IDLE: Final = (0.05, 1.0, 30.0)
COPIES_MAX: Final = 2


def operator(run: Run, actor: Actor, role: Role) -> None:
    """Operates the table; its writer is opened now and then, used, and left idle."""
    desk = _Desk(run, actor, role)
    for _ in range(role.ops):
        try:
            desk.sit_down()
            desk.operate()
        except WeirError as error:
            run.note(actor, f"operating failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
            desk.hear(error)
    desk.leave()


class _Desk:
    """What the operator has open."""

    def __init__(self, run: Run, actor: Actor, role: Role) -> None:
        self.run, self.actor, self.role = run, actor, role
        self.rng = random.Random(f"operator/{run.plan.seed}/{actor.name}")
        self.copies = 0
        self.session: Session | None = None
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """The handle, always the same one."""
        self._table = self._table or open_table(TABLE, env=self.actor.env)
        return self._table

    def sit_down(self) -> None:
        """Ensure that the handle has a writer, use it a little or not at all, and idle."""
        if self.session is not None and (self.session.ended or self.rng.random() < 0.1):
            self.leave()
        if self.session is None:
            opened = Session(
                self.run, self.actor, self.role, self.run.next_session(), table=self.table
            )
            if opened.open():
                self.session = opened
                opened.work(self.rng.randint(0, 3))
        elif self.rng.random() < 0.15:
            self.session.work(1)  # notices that it was fenced, if it was
        self.actor.env.clock.sleep(self.rng.choice(IDLE))

    def hear(self, error: WeirError) -> None:
        """Rows that an error hands back are the operator's again (F-16)."""
        if self.session is None:
            return
        ids = {
            ident
            for batch in error.unacknowledged
            for ident in zip(
                batch.column("w").to_pylist(), batch.column("c").to_pylist(), strict=True
            )
        }
        self.session.accepted = [put for put in self.session.accepted if put.id not in ids]

    def leave(self) -> None:
        """Close the writer."""
        if self.session is not None:
            session, self.session = self.session, None
            session.leave()

    def operate(self) -> None:
        """One thing an operator does."""
        run, rng = self.run, self.rng
        begun = unfinished(self.table)
        if begun is not None:
            self._restore(begun, first=False)
            return
        run.judge.rollback.pop(self.actor.name, None)  # another process finished it
        roll = rng.random()
        if run.moments and roll < 0.25:
            self._restore(rng.choice(sorted(run.moments, key=str)), first=True)
        elif self.copies < COPIES_MAX and roll < 0.5:
            self._clone()
        elif len(run.moments) < MOMENTS_MAX:
            self._checkpoint()
        elif run.moments:
            self._look(rng.choice(sorted(run.moments, key=str)))

    def _checkpoint(self) -> None:
        taken = self._taken()
        made = keep(self.run, self.actor, self.rng, self.table)
        if made is None:
            return
        if made.scope == "all":
            self._require_all(made, taken)
        self._look(made.id)

    def _taken(self) -> list[Put]:
        """The puts that the handle's own writer has accepted and not handed back."""
        return [] if self.session is None or self.session.ended else list(self.session.accepted)

    def _require_all(self, made: Checkpoint, taken: list[Put]) -> None:
        """K-3: scope "all" has the rows that the handle's writer accepted before the call."""
        pin = made.pin(SHARD)
        through = 0 if pin is None else pin.wal_through
        for put in taken:
            if not 0 < self.run.judge.seen.get(put.id, 0) <= through:
                raise Violation("K", f"batch {put.id} was taken, and is not in the checkpoint")

    def _look(self, checkpoint: UUID) -> None:
        """K: a checkpoint still shows the same rows, through this handle or a new one."""
        run = self.run
        table = self.table if self.rng.random() < 0.5 else open_table(TABLE, env=self.actor.env)
        wanted = run.moments[checkpoint]
        try:
            pinned = find(table.core, checkpoint)
            rows = table_rows(Scan(table.core, pinned=pinned).to_table())
        except StoreError as error:
            run.note(self.actor, f"read at a moment failed: {type(error).__name__}")
            return
        except WeirError as error:
            raise Violation("K", f"a checkpoint cannot be read: {error}") from error
        run.judge.counts["views at a checkpoint"] += 1
        if index_rows(rows, keyed=run.plan.keyed) != wanted:
            raise Violation("K", f"checkpoint {checkpoint} is not what the log was")

    def _clone(self) -> None:
        """Clone a checkpoint, or the current state."""
        run, judge = self.run, self.run.judge
        uri = f"s3://{self.actor.name.replace(chr(39), '-')}-{self.copies}"
        self.copies += 1
        moment = None
        if run.moments and self.rng.random() < 0.5:
            moment = self.rng.choice(sorted(run.moments, key=str))
        low, changes = judge.truth(SHARD).acked, judge.mixtures
        copy = self.table.clone(uri, moment)
        rows = table_rows(Scan(copy.core).to_table())
        run.note(self.actor, f"cloned {moment or 'now'} to {uri}")
        judge.counts["clones"] += 1
        state = index_rows(rows, keyed=run.plan.keyed)
        if moment is not None and state != run.moments[moment]:
            raise Violation("K", f"{uri} is not what the checkpoint was")
        if moment is None and not judge.is_mixed and judge.mixtures == changes:
            judge.viewed(SHARD, rows, low=low, high=judge.truth(SHARD).tip)
        run.copies[uri] = Copy(uri, TABLE, state=state)

    def _restore(self, checkpoint: UUID, *, first: bool) -> None:
        """Restore; its undo checkpoint must hold all that was acknowledged before (K-9)."""
        run, judge = self.run, self.run.judge
        truth = judge.truth(SHARD)
        low, changes, earlier = truth.acked, judge.mixtures, set(truth.undone)
        report = roll_back(run, self.actor, self.table, checkpoint)
        undo = report.undo
        pin = undo.pin(SHARD)
        # Only our own, of a table that was whole: `roll_back` mixed and unmixed it once.
        if pin is None or judge.makers.get(undo.id) != self.actor.name or not first:
            return
        if judge.mixtures != changes + 2:
            return
        if pin.wal_through < low:
            raise Violation(
                "K", f"the way back ends at {pin.wal_through}, and {low} was acknowledged (K-9)"
            )
        # Claimed again after a native writer came between, it pins the restore's own fence.
        at = pin.wal_through
        is_fence = at in truth.undone and at not in earlier
        run.moments[undo.id] = truth.undone[at] if is_fence else truth.state(at)
        judge.pins[undo.id] = (SHARD, pin.manifest_version, pin.wal_through)
        judge.counts["ways back"] += 1
        self._look(undo.id)


def final_of_operators(run: Run, actor: Actor) -> None:
    """Check that every clone is what it was, and that the table is whole."""
    for copy in run.copies.values():
        check_copy(run, actor, copy)
    final_of_restores(run, actor)


OPERATORS = {"operator": operator}
