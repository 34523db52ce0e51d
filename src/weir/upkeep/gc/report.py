"""What a collection saw, deleted and kept, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["wal", "manifests", "sstables", "checkpoints", "consumers", "base", "leftovers"]
KINDS: Final[tuple[Kind, ...]] = (
    "wal",
    "manifests",
    "sstables",
    "checkpoints",
    "consumers",
    "base",
    "leftovers",
)

Progress = Callable[[str, int, int], None]
"""`progress(kind, done, total)`: objects deleted so far of those planned so far."""
Veto = Callable[[str, str], bool]
"""`veto(kind, path)`: True keeps the object (for mirrors). The floors rise regardless (G-10)."""


@dataclass
class KindReport:
    """One kind of object."""

    seen: int = 0
    seen_bytes: int = 0
    deleted: int = 0
    """Objects deleted; in a dry run, those that would be."""
    deleted_bytes: int = 0
    """Their bytes; a dry run cannot tell those of base versions whose checkpoint has expired."""
    kept: Counter[str] = field(default_factory=Counter)
    """Objects kept, by reason."""

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready values."""
        return {
            "seen": self.seen,
            "seen_bytes": self.seen_bytes,
            "deleted": self.deleted,
            "deleted_bytes": self.deleted_bytes,
            "kept": dict(sorted(self.kept.items())),
        }


@dataclass
class GcReport:
    """The result of `table.gc()`."""

    dry_run: bool
    kinds: dict[str, KindReport] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    """What was left alone, and why: for example, a WAL store that could not be reached (S-5)."""
    errors: list[str] = field(default_factory=list)
    """Tasks that failed; the others went on (G-10). Run again."""
    ended: int = 0
    """Checkpoints and consumers whose lifetime was over, or whose clone is gone."""
    pruned: int = 0
    """SSTables taken out of shard manifests because the base holds their rows."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when no task failed."""
        return not self.errors

    @property
    def deleted(self) -> int:
        """Objects deleted, of all kinds."""
        return sum(kind.deleted for kind in self.kinds.values())

    @property
    def deleted_bytes(self) -> int:
        """Bytes deleted, of all kinds."""
        return sum(kind.deleted_bytes for kind in self.kinds.values())

    def kind(self, name: str) -> KindReport:
        """The report of one kind, created on first use."""
        return self.kinds.setdefault(name, KindReport())

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready values."""
        return {
            "dry_run": self.dry_run,
            "ok": self.ok,
            "deleted": self.deleted,
            "deleted_bytes": self.deleted_bytes,
            "ended": self.ended,
            "pruned": self.pruned,
            "kinds": {name: kind.to_dict() for name, kind in self.kinds.items()},
            "skipped": list(self.skipped),
            "errors": list(self.errors),
            "seconds": self.seconds,
        }
