"""What a fold of an append-only table says before it commits, so that no reader counts a row twice.

A fold's rows are in the base with its commit; the marks that make readers skip its generations come
with the next (pylance has no operation that carries both). With a primary key that is harmless, the
same rows win again. Without one they would be read twice in between. So the fold announces itself
in the table's config first: its generations, and the name of one file it is about to add. Whoever
opens a version sees from that version alone whether the fold is in it (L-4, L-5): in a checkpoint
and in a clone as well. Once marked, an announcement says nothing new, and the next job takes it
back. Each job has a key of its own, and takes back only what it saw when it planned: a compactor
that was fenced may still announce, and must not talk over its successor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import lance

from weir.errors import CommitConflict, CorruptEntry
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors

# Stored. Never change a value; add one.
KEY: Final = "weir.fold."
"""What keys of the table's config that hold announcements begin with; the job's id follows."""

_ATTEMPTS_MAX: Final = 20


class _Version(Protocol):
    @property
    def marked(self) -> Mapping[UUID, int]: ...

    def names_file(self, path: str) -> bool: ...


@dataclass(frozen=True)
class Announcement:
    """A fold that may or may not be in a version."""

    generations: Mapping[UUID, int]
    witness: str
    """A data file the fold adds: where it is, the fold is."""

    def beyond(self, version: _Version) -> dict[UUID, int]:
        """What the fold brought into `version` that no mark tells of yet."""
        more = {s: g for s, g in self.generations.items() if g > version.marked.get(s, 0)}
        return more if more and version.names_file(self.witness) else {}


def announced_folds(dataset: lance.LanceDataset) -> list[Announcement]:
    """The announcements that version knows of. No request."""
    found = []
    for key, text in dataset.config().items():
        if key.startswith(KEY):
            try:
                raw = json.loads(text)
                generations = {UUID(shard): int(g) for shard, g in raw["generations"].items()}
                found.append(Announcement(generations, str(raw["witness"])))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CorruptEntry(
                    f"{dataset.uri}: its config {key!r} is damaged: {error!r}"
                ) from error
    return found


def announce_fold(
    datasets: Datasets,
    job: str,
    generations: Mapping[UUID, int],
    fragment: str,
    *,
    planned_at: int,
) -> None:
    """Say which generations the job brings that adds `fragment` (as `Changes` has it). A commit.

    What was announced before version `planned_at` is settled, and taken back.
    """
    witness = json.loads(fragment)["files"][0]["path"]
    told = {"generations": {str(s): g for s, g in generations.items()}, "witness": witness}
    settled = [key for key in datasets.at(planned_at).config() if key.startswith(KEY)]
    values: dict[str, str | None] = {**dict.fromkeys(settled), f"{KEY}{job}": json.dumps(told)}
    for _ in range(_ATTEMPTS_MAX):
        # A handle of its own: `update_config` moves the handle it is called on.
        dataset = datasets.open(datasets.uri)
        try:
            with lance_errors(f"announcing a fold of {datasets.uri}"):
                dataset.update_config(values)
        except CommitConflict:
            continue
        return
    raise CommitConflict(f"{datasets.uri}: others keep committing while a fold is announced")
