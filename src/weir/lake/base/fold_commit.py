"""The one commit that makes a fold part of the base, and the mark that follows it.

Keeps
  L-4  one base commit holds the deletes, the new rows, the properties that describe them and the
       note of what was folded; the mark in the MemWAL index follows and may be repeated. A stalled
       compactor is fenced (`fence`)
  L-7  from that commit on the version itself says which generations are in it (`folded`)
  L-8  a fold is committed only on top of the version it was checked against: it examines what other
       programs did to the base since the plan, and hides the rows there that it must hide

A fold is a `Merge`. Lance never commits one on top of an append, an update, a delete, a rewrite, a
restore or an overwrite that it has not seen, and it makes another program's merge that was planned
before the fold search for its keys again. Index builds and config changes pass, either way round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import lance
from lance import LanceOperation
from lance.fragment import FragmentMetadata
from lance.mem_wal import CompactedSsTable

from weir.errors import CommitConflict, InvalidInput, SnapshotExpired, StoreError, UnknownOutcome
from weir.format.schema import no_rows
from weir.lake.api import Base, require_weir_base
from weir.lake.base.fence import Fences, check_fence
from weir.lake.base.fold import BaseFence, VersionEdit, combine, to_text
from weir.lake.base.folded import folded_into, with_note
from weir.lake.base.history import Commit, History
from weir.lake.base.repeating import repeated
from weir.lake.datasets import Handles
from weir.lake.lance_errors import lance_errors

# Stored. Never change a value; add one.
FOLD: Final = "weir.fold"
"""Property of a fold's commit; its value is the fold's id, unique to one plan."""

LOAD: Final = "weir.bulk"
"""Property of a load's commit, whose rows bypassed the logs: how many rows it brought."""

WHOLE: Final = "weir.whole"
"""Property of a load's commit: everything that was written before the load is in that version."""


Hide = Callable[[int, Sequence[int]], VersionEdit]
"""`hide(version, fragments)`: what the fold hides in fragments that others changed or added."""


def hide_nothing(_version: int, _fragments: Sequence[int]) -> VersionEdit:
    """For folds that only add rows."""
    return VersionEdit()


class Folds(Fences, History):
    """The verbs of `Lake` that bring a fold into the base."""

    datasets: Handles

    def commit_fold(
        self,
        changes: VersionEdit,
        *,
        claim: BaseFence,
        planned_at: int,
        fold_id: str,
        properties: Mapping[str, str],
        folded: Mapping[UUID, int] | None = None,
        number: int = 0,
        hide: Hide | None = None,
    ) -> int:
        """See `Lake`."""
        if planned_at < claim.fenced_at:
            raise InvalidInput(
                f"{self.uri}: the fold was planned on version {planned_at}, before its own fence at"
                f" version {claim.fenced_at}; plan it again"
            )
        planned = self.open_base(planned_at)
        checked, looked = planned, claim.fenced_at
        what = f"committing fold {fold_id} of {self.uri} planned on version {planned_at}"
        tried = False
        for _ in self.datasets.env.attempts():
            latest = self.open_base()
            since = self._since(looked, latest.version, what, tried=tried)
            looked = latest.version
            # An earlier attempt may have been applied although its answer was lost.
            done = [commit.version for commit in since if commit.properties.get(FOLD) == fold_id]
            if done:
                return done[0]
            for commit in since:
                check_fence(self.uri, claim.token, commit)
                if commit.is_restore and commit.version > planned_at:
                    raise CommitConflict(
                        f"{what}: the base was rolled back at version {commit.version}; run it"
                        " again"
                    )
            if latest.version != checked.version:
                _require_same_table(planned, latest)
                changes = _carried_over(checked, latest, changes, hide)
                checked = latest
            notes = _noted(latest, folded or {}), planned.schema.primary_key, number
            transaction = lance.Transaction(
                read_version=latest.version,
                operation=LanceOperation.Merge(
                    fragments=_fragments(latest, changes),
                    schema=with_note(
                        latest.dataset.lance_schema, *notes, _loaded(latest, properties)
                    ),
                    preserves_nullability=True,
                ),
                transaction_properties={**properties, FOLD: fold_id},
            )
            try:
                with lance_errors(what):
                    return self.datasets.commit(latest.dataset, transaction)
            except CommitConflict:
                tried = True  # guard: L-7
                continue  # another commit took the version number; our put is dead
            except StoreError as error:
                return self._resolve_lost_answer(claim, fold_id, planned_at, error)
        raise CommitConflict(f"{what}: other commits were faster, again and again; run it again")

    def _since(self, after: int, until: int, what: str, *, tried: bool) -> list[Commit]:
        try:
            return list(self.commits(after=after, until=until))
        except SnapshotExpired:
            if not tried:
                raise
            # L-7: the commit we lost to may be our own, from a request that a proxy repeated.
            raise UnknownOutcome(
                f"{what}: it is not known whether the commit succeeded, because the versions that"
                " show it were cleaned up. Check whether its rows are in the base; if not, run it"
                " again"
            ) from None

    def _resolve_lost_answer(
        self, claim: BaseFence, fold_id: str, planned_at: int, error: StoreError
    ) -> int:
        """The version of the fold, after a commit whose answer was lost; raises `error` if none.

        The put may still be in flight. A fence takes the version that the put aims at, or finds it
        taken: after the fence, the fold is in the history or never will be.
        """
        fenced_at = self.fence_base(claim.token)
        try:
            done = self.find_commit(FOLD, fold_id, after=planned_at, until=fenced_at)
        except SnapshotExpired:
            raise error from None  # history cleaned up: the outcome is unknown, not a conflict
        if done is None:
            raise error
        return done

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """See `Lake`."""

        def attempt() -> int | None:
            base = self.open_base()
            due = {shard: g for shard, g in marks.items() if g > base.marked.get(shard, 0)}
            if not due:
                return None
            self._mark(base, due)
            return self.datasets.latest().version

        what = f"{self.uri}: marking generations as compacted"
        return repeated(self.datasets.env, attempt, what)

    def _mark(self, base: Base, marks: Mapping[UUID, int]) -> None:
        if base.mem_wal is None:
            raise InvalidInput(f"{self.uri} has no MemWAL index; nothing can be marked compacted")
        # A separate handle: a merge moves the handle it is called on.
        dataset = self.datasets.changing(base.version)
        # An empty merge is the only pylance operation that carries marks; any join column will do.
        column = base.schema.primary_key[:1] or tuple(base.schema.arrow.names[:1])
        with lance_errors(f"marking generations of {self.uri} as compacted"):
            builder = dataset.merge_insert(list(column)).when_matched_update_all()
            builder.mark_sstables_as_compacted(
                [CompactedSsTable(str(shard), generation) for shard, generation in marks.items()]
            )
            builder.execute(no_rows(dataset.schema))


def _require_same_table(planned: Base, latest: Base) -> None:
    """Raise unless a fold planned on `planned` is still valid on `latest`."""
    where = f"{latest.dataset.uri} at version {latest.version}"
    if planned.mem_wal is not None:
        require_weir_base(latest, planned.schema.primary_key, latest.dataset.uri)
    before, now = planned.schema, latest.schema
    if before.field_ids != now.field_ids or not before.arrow.equals(now.arrow):
        raise CommitConflict(
            f"{where}: its columns changed since version {planned.version}, on which the fold was"
            " planned; run it again"
        )


def _carried_over(
    checked: Base, latest: Base, changes: VersionEdit, hide: Hide | None
) -> VersionEdit:
    """`changes`, made for `checked`, adapted to `latest`, which has the same columns."""
    before, now = _texts(checked), _texts(latest)
    same = {number for number, text in now.items() if before.get(number) == text}
    kept = replace(
        changes,
        updated=tuple(text for text in changes.updated if _number(text) in same),
        removed=tuple(number for number in changes.removed if number in same),
    )
    others = sorted(number for number in now if number not in same)
    if not others and len(now) == len(before):
        return kept
    if hide is None:
        raise CommitConflict(
            f"{latest.dataset.uri}: another program changed rows of the base between versions"
            f" {checked.version} and {latest.version}, after the fold was planned; run it again"
        )
    # guard: L-8 never simulator:strangers
    return combine([kept, hide(latest.version, others)]) if others else kept


def _fragments(base: Base, changes: VersionEdit) -> list[FragmentMetadata]:
    """The fragments of `base` after `changes`. Lance drops those that have no row left."""
    texts = _texts(base)
    texts |= {_number(text): text for text in changes.updated}
    texts |= {number: _without_rows(texts[number], base.version) for number in changes.removed}
    return [FragmentMetadata.from_json(text) for text in (*texts.values(), *changes.added)]


def _without_rows(text: str, version: int) -> str:
    """The fragment with all its rows deleted.

    A `Merge` must name every fragment. Lance leaves this one out of the new version, so the
    deletion vector is never read; its file does not exist.
    """
    raw = json.loads(text)
    if not raw["physical_rows"]:
        raise InvalidInput(
            f"fragment {raw['id']} of base version {version} has no row count, because an old"
            " release of Lance wrote it; run `dataset.optimize.compact_files()` once, then retry"
        )
    raw["deletion_file"] = {
        "read_version": version,
        "id": 0,
        "file_type": "bitmap",
        "num_deleted_rows": raw["physical_rows"],
        "base_id": None,
    }
    return json.dumps(raw)


def _texts(base: Base) -> dict[int, str]:
    return {f.fragment_id: to_text(f.metadata) for f in base.dataset.get_fragments()}


def _number(text: str) -> int:
    return int(json.loads(text)["id"])


def _noted(base: Base, folded: Mapping[UUID, int]) -> dict[UUID, int]:
    """The generations that no mark covers once `folded` is in the base."""
    noted = folded_into(base.dataset)
    for shard, generation in folded.items():
        noted[shard] = max(generation, noted.get(shard, 0))
    return {shard: g for shard, g in noted.items() if g > base.marked.get(shard, 0)}


def _loaded(base: Base, properties: Mapping[str, str]) -> int:
    """The number of a load that is committed on `base`; 0 for a fold.

    Versions only rise, also where the base is rolled back, and so do these numbers.
    """
    return base.version + 1 if LOAD in properties else 0
