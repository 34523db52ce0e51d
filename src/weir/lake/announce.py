"""What a fold of an append-only table says before it commits, so that no reader counts a row twice.

A fold's rows are in the base with its commit; the marks that make readers skip its generations come
with the next (pylance has no operation that carries both). With a primary key that is harmless, the
same rows win again. Without one they would be read twice in between. So the fold announces itself
in the table's config first: its generations, and the name of one file it is about to add. Whoever
opens a version sees from that version alone whether the fold is in it (L-4, L-5): in a checkpoint
and in a clone as well. Nothing has to be taken back: once marked, an announcement says nothing new.
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
KEY: Final = "weir.fold"
"""Key of the table's config that holds the latest announcement."""

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


def announced_fold(dataset: lance.LanceDataset) -> Announcement | None:
    """The latest announcement as that version knows it. No request."""
    text = dataset.config().get(KEY)
    if not text:
        return None
    try:
        raw = json.loads(text)
        generations = {UUID(shard): int(g) for shard, g in raw["generations"].items()}
        return Announcement(generations, str(raw["witness"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptEntry(f"{dataset.uri}: its config {KEY!r} is damaged: {error!r}") from error


def announce_fold(datasets: Datasets, generations: Mapping[UUID, int], fragment: str) -> None:
    """Say which generations the fold brings that adds `fragment` (as `Changes` has it). A commit.

    Done again by a later fold, it replaces the announcement: the fence has settled the older one.
    """
    witness = json.loads(fragment)["files"][0]["path"]
    text = json.dumps(
        {"generations": {str(s): g for s, g in generations.items()}, "witness": witness}
    )
    for _ in range(_ATTEMPTS_MAX):
        # A handle of its own: `update_config` moves the handle it is called on.
        dataset = datasets.open(datasets.uri)
        try:
            with lance_errors(f"announcing a fold of {datasets.uri}"):
                dataset.update_config({KEY: text})
        except CommitConflict:
            continue
        return
    raise CommitConflict(f"{datasets.uri}: others keep committing while a fold is announced")
