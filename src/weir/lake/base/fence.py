"""Fencing compactors of one base table by Lance's own conflict rules (L-4).

Lance rebases a late commit on whatever came before it, so a stalled compactor could fold rows a
second time. But it never rebases a `Merge` over another `Merge`. A fence is therefore a `Merge`
that changes nothing: the same fragments, the same schema. A fold is a `Merge` too (`fold_commit`),
and checks every version up to the one it is committed on for foreign fences. This works for an
empty table, for tables without a key, and between any two processes, with the put-if-absent of the
manifest as the only arbiter. Appends of other tools pass (`preserves_nullability`).

(`LanceDataset.commit(commit_lock=...)` looks like the tool for this but is not. According to its
public source, Lance under a lock checks for the manifest and then puts it unconditionally, so a
holder that stalls between the two overwrites another process's commit.)
"""

from __future__ import annotations

from typing import Final

import lance
from lance import LanceOperation

from weir.errors import CommitConflict, InvalidInput
from weir.lake.api import Lake
from weir.lake.base.history import Commit
from weir.lake.base.repeating import repeated
from weir.lake.datasets import Handles
from weir.lake.lance_errors import lance_errors

# Stored. Never change a value; add one.
FENCE: Final = "weir.fence"
"""Property of a fence's commit; its value is the claimant's token."""


class Fences(Lake):
    """The verb of `Lake` that fences."""

    datasets: Handles

    def fence_base(self, token: str) -> int:
        """See `Lake`."""
        if not token:
            raise InvalidInput("a fence needs a token that names its claimant")

        def attempt() -> int:
            dataset = self.datasets.latest()
            operation = LanceOperation.Merge(
                fragments=[fragment.metadata for fragment in dataset.get_fragments()],
                schema=dataset.lance_schema,
                preserves_nullability=True,
            )
            transaction = lance.Transaction(
                read_version=dataset.version,
                operation=operation,
                transaction_properties={FENCE: token},
            )
            with lance_errors(f"fencing {self.uri} at version {dataset.version}"):
                return self.datasets.commit(dataset, transaction)

        return repeated(self.datasets.env, attempt, f"{self.uri}: the fence of a compaction")


def check_fence(uri: str, token: str, commit: Commit) -> None:
    """Raise `CommitConflict` when `commit` is another compactor's fence.

    A fold on top of such a fence would pass Lance's check although its claim is lost.
    """
    owner = commit.properties.get(FENCE)
    if owner is not None and owner != token:
        raise CommitConflict(
            f"{uri}: another compactor fenced the table at version {commit.version};"
            " this one stops and leaves its files to garbage collection"
        )
