"""Scripts for `simulator.crash` beyond one shard's life: each runs to its end once, and then dies
at each of its writes."""

from __future__ import annotations

import random
from typing import Any, Final

from simulator.copies import Copy, final_of_clones, finish
from simulator.crash import SMALL, WAL_ONLY, Life, Script, session
from simulator.keepers import ModelRunner
from simulator.reshards import TableSession, final_of_reshards, make_sharded
from simulator.restores import final_of_restores, keep, roll_back, unfinished
from simulator.roles import open_shard, write_record
from simulator.scenarios import SHARD, TABLE, WAL, Role, Run
from simulator.scheduler import Actor
from weir.config import WriterConfig
from weir.format.sharding import Bucket
from weir.making import open as open_table
from weir.records.resharding import read_resharding
from weir.upkeep.checkpoint import checkpoints, create, delete
from weir.upkeep.compact.run import compact
from weir.upkeep.reshard import reshard

TABLE_ROLE: Final = Role("script", ops=5, config={**SMALL, "durable_write": True})


def compact_table(_run: Run, actor: Actor) -> None:
    """Fold everything, replacing a compactor that seems dead."""
    compact(open_table(TABLE, env=actor.env).core, engine=ModelRunner(), lease=0)


def pin_table(run: Run, actor: Actor) -> None:
    """Make one checkpoint of each scope, and delete the first."""
    table = open_table(TABLE, env=actor.env)
    held = create(table.core, "durable")
    create(table.core, "all")
    delete(table.core, held)
    for checkpoint in checkpoints(table.core):
        pin = checkpoint.pin(SHARD)
        if pin is not None:
            run.judge.pins[checkpoint.id] = (SHARD, pin.manifest_version, pin.wal_through)


def hand_over(store: str) -> Script:
    """Move the log there, and write."""

    def script(run: Run, actor: Actor) -> None:
        writer = open_shard(run, actor, WriterConfig(**SMALL, fence_ttl=0), store)
        run.judge.opened(SHARD, writer.epoch)
        writer.close()

    return script


def clone_table(run: Run, actor: Actor) -> None:
    """A clone of the durable state, with a log of its own."""
    uri = "s3://copy"
    copy = run.copies.get(uri)
    if copy is None:
        made = create(open_table(TABLE, env=actor.env).core, "durable")
        pin = made.pin(SHARD)
        assert pin is not None, "a shard with rows"
        through = pin.wal_through
        copy = run.copies[uri] = Copy(
            uri, TABLE, f"{uri}-wal", made.id, asked=True, low=through, high=through
        )
    finish(run, actor, copy)


def fill_table(run: Run, actor: Actor) -> None:
    """Put rows through the routing."""
    TableSession(run, actor, TABLE_ROLE).live()


def reshard_table(_run: Run, actor: Actor) -> None:
    """Reshard to five buckets, or finish the reshard that was begun."""
    table = open_table(TABLE, env=actor.env)
    begun = read_resharding(table.core.store)
    sharding = begun.sharding if begun is not None and begun.is_open else Bucket("k", 5)
    reshard(table.core, sharding, compact=False, engine=ModelRunner())


def keep_moment(run: Run, actor: Actor) -> None:
    """Rows, a checkpoint of them, and more rows."""
    session(WAL_ONLY, "ppp")(run, actor)
    keep(run, actor, random.Random(0), open_table(TABLE, env=actor.env))
    session(SMALL, "ppfp")(run, actor)


def restore_table(run: Run, actor: Actor) -> None:
    """Restore the checkpoint, or finish the restore that another process began."""
    table = open_table(TABLE, env=actor.env)
    roll_back(run, actor, table, unfinished(table) or next(iter(run.moments)))


_ONE: dict[str, Any] = {"setup": write_record}
STORIES: Final = {
    "checkpoint": Life(pin_table, before=session(SMALL, "ppfpx"), **_ONE),
    "clone": Life(clone_table, before=session(SMALL, "ppfpx"), final=final_of_clones, **_ONE),
    "compaction": Life(compact_table, before=session(SMALL, "ppfppf"), **_ONE),
    "move of the log": Life(hand_over(WAL), before=session(SMALL, "ppfpx"), moves=True, **_ONE),
    "move of the log and back": Life(
        hand_over(WAL), before=session(SMALL, "pfpx"), again=hand_over(TABLE), moves=True, **_ONE
    ),
    "reshard": Life(reshard_table, before=fill_table, setup=make_sharded, final=final_of_reshards),
    "restore": Life(restore_table, before=keep_moment, final=final_of_restores, **_ONE),
}
"""By the name of the protocol."""
