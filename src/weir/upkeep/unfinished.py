"""Which verb waits for the unfinished work of which other: decided here, for all of them.

A verb that dies leaves a record of what it began. Most verbs can go on beside it:

  a compaction or load that died   the next holder of the compactors' claim completes it (L-4)
  a move of the log                every shard says for itself where its log is (S-3)
  an unfinished clone              cannot be opened by anyone (C-2)

Two cannot be passed over. While a restore is unfinished the base and the shards may be of two
different moments (K-11): whatever builds on them would make the mixture final. And a restore that
ran in the middle of a reshard would claim the shards that the reshard is about to use.
`gc` and `drop` wait for nobody: what an unfinished restore needs is held by checkpoints, which
neither a user nor `gc` ends before it is done.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from weir.errors import CommitConflict
from weir.records.lineage import Restored, restoring
from weir.records.resharding import read_resharding
from weir.routing.core import Core

Verb = Literal[
    "adopt",
    "checkpoint",
    "columns",
    "compact",
    "load",
    "move_wal",
    "reshard",
    "restore",
    "statement",
]
"""The verbs that wait: a restore for a reshard, all others for a restore."""


def require_unneeded(core: Core, checkpoint: UUID) -> None:
    """Raise `CommitConflict` for a checkpoint without which a restore cannot be finished.

    To be asked after the checkpoint was read, and before it is ended: a restore announces itself,
    and then appends to the checkpoint's records, so that one of the two meets the other. One list.
    """
    begun = restoring(core.store)
    if begun is not None and checkpoint in (begun.checkpoint, begun.undo):  # guard: K-11
        raise CommitConflict(
            f"{core.uri}: {_restore(begun)}, and needs checkpoint {checkpoint}, which was not"
            f" deleted. {_finish(begun)}"
        )


def _restore(begun: Restored) -> str:
    return f"a restore of checkpoint {begun.checkpoint} is running or was interrupted"


def _finish(begun: Restored) -> str:
    return f"Wait for that restore, or finish it: table.restore({str(begun.checkpoint)!r})"


def require_settled(core: Core, verb: Verb) -> None:
    """Raise `CommitConflict` when `verb` must wait for another's unfinished work. One list.

    A clone without a checkpoint makes one first, so it waits as `checkpoint` does.
    """
    if verb != "restore":
        begun = restoring(core.store)
        if begun is not None:  # guard: K-11
            raise CommitConflict(
                f"{core.uri}: {_restore(begun)}, and the table may be part before and part after"
                f" it. Nothing was done. {_finish(begun)}"
            )
    if verb == "restore":
        reshard = read_resharding(core.store)
        if reshard is not None and reshard.is_open:
            raise CommitConflict(
                f"{core.uri}: a change to {reshard.sharding} is running or was interrupted. Nothing"
                f" was done. Wait for it, or finish it: {reshard.command}. After it, clone a"
                " checkpoint from before instead of restoring it"
            )
