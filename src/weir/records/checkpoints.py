"""Checkpoint records: what is pinned, how long, for whom; a chain each in `_weir/checkpoints`.

Record 1 names everything the checkpoint holds. The checkpoint is then pending: it protects, but
cannot be used yet. A later record confirms it, extends its lifetime, or marks it deleted
(`weir.records.holds`). None of this is in a shard manifest: pylance drops fields it does not know.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from msgspec import Meta

from weir.errors import InvalidInput
from weir.format import paths
from weir.records.codec import Record
from weir.records.cut import ShardCut
from weir.store.open import require_recorded

Scope = Literal["all", "durable"]

NAME_LENGTH_MAX = 256
_IN_THE_CALENDAR = Meta(ge=-62_135_596_800, lt=253_402_300_800)
"""From the year 1 to 9999: Python has no date for other times."""


class CheckpointState(Record, frozen=True):
    """A record after the first; the newest record counts."""

    KIND: ClassVar[str] = "checkpoint record"
    confirmed: bool = False
    expires: float | None = None
    base_only: bool = False
    deleted: bool = False
    """The chain has ended."""
    reason: str | None = None
    """Why it has ended."""


class Checkpoint(Record, frozen=True):
    """A moment of the table: a manifest and a log end for each shard, and a base version."""

    KIND: ClassVar[str] = "checkpoint record"
    id: UUID
    scope: Scope
    created: Annotated[float, _IN_THE_CALENDAR]
    """Seconds since 1970 by the store's clock, like `expires`."""
    base_version: int
    routing_version: int
    shards: tuple[ShardCut, ...]
    name: str | None = None
    expires: float | None = None
    """When collection may remove it; None: never."""
    owner: str | None = None
    """URI of the clone that holds it; None for a user's checkpoint."""
    confirmed: bool = False
    base_only: bool = False
    """True for the pin of a finished clone: it holds the base alone, as the rest was copied."""

    def __post_init__(self) -> None:
        """Refuse a place that cannot be."""
        require_recorded(self.owner)

    def __repr__(self) -> str:
        return f"Checkpoint(id={self.id}, name={self.name!r}, scope={self.scope!r})"

    @property
    def state(self) -> CheckpointState:
        """What the next record of its chain says."""
        return CheckpointState(
            confirmed=self.confirmed, expires=self.expires, base_only=self.base_only, seq=self.seq
        )

    @property
    def label(self) -> str:
        """Whom it is for: the clone that holds it, its name, or its id."""
        return self.owner or self.name or str(self.id)

    def pin(self, shard: UUID) -> ShardCut | None:
        """The cut it holds of that shard, or None."""
        return next((pin for pin in self.shards if pin.shard == shard), None)

    @property
    def base_tag(self) -> str:
        """The Lance tag that keeps `base_version` from Lance's own clean-up."""
        return tag_of(self.id)


def tag_of(checkpoint: UUID) -> str:
    """The name of a checkpoint's tag on the base."""
    return f"weir-{checkpoint}"


def checkpoint_of_tag(tag: str) -> UUID | None:
    """The checkpoint behind a tag's name, or None for a tag that is not weir's."""
    if not tag.startswith("weir-"):
        return None
    try:
        return paths.parse_shard_id(tag.removeprefix("weir-"))
    except InvalidInput:
        return None


Ref = Checkpoint | UUID | str
"""A checkpoint, its id, or its name (the newest of that name)."""


def require_whole(checkpoint: Checkpoint) -> None:
    """`InvalidInput` for the pin of a finished clone: it cannot be read, cloned or restored."""
    if checkpoint.base_only:
        raise InvalidInput(
            f"checkpoint {checkpoint.id} is the pin of the clone {checkpoint.owner}. It holds only"
            " base files that the clone shares, so it cannot be read, cloned or restored. Use"
            " another checkpoint"
        )


def check_name(name: object) -> None:
    """`InvalidInput` unless the name can be a label."""
    if name is None or (isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX):
        return
    told = repr(name)[: NAME_LENGTH_MAX + 2]
    raise InvalidInput(f"a checkpoint's name is 1 to {NAME_LENGTH_MAX} characters, not {told}")
