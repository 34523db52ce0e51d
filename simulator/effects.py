"""Changes of a table that bypass its log: plain Lance commits and loads. The judge of the base.

The log through a position determines a view, except for rows that bypassed the log. Each such
commit is an effect on the rows it changed: it wins over rows that were in the log before it began,
loses to rows that reach the log after it, and either may win over rows written in between.
weir cannot know when a stranger's commit began: it wins over an older row of the log if that row
was in the base by then. A view shows all effects up to some version of the base, and none after it.

Every version is checked as it is committed: no key, and no row, may be in it twice (L-7, L-8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from simulator.model_base import ModelBase
from simulator.truth import Ident, Row, ShardTruth, State, Violation, identity, index_rows
from weir.lake.base.fold_commit import FOLD

_COLUMNS = ("k", "w", "c", "i", "n")
_NEVER = -1


@dataclass
class Load:
    """Rows on their way into the base."""

    begun: int
    """The step at which it was requested."""
    rows: State
    replaces: bool
    """All other rows are removed."""
    version: int = 0
    """The version that contains it; 0 before its commit."""
    refused: bool = False
    """Its caller was told that nothing was loaded."""


@dataclass(frozen=True)
class Effect:
    """What one commit that bypassed the log did to rows."""

    version: int
    step: int
    begun: int
    rows: Mapping[Ident, Row | None]
    """The new row of each identity; None: removed."""
    replaces: bool = False
    """All other rows were removed."""


@dataclass
class BaseTruth:
    """What the judge knows about the base."""

    keyed: bool
    read: Callable[[bytes], ModelBase]
    latest: int = 0
    loads: dict[str, Load] = field(default_factory=dict)
    """By the id of their job."""
    effects: list[Effect] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    """The rows of each version."""

    def on_version(self, data: bytes, step: int) -> None:
        """Check a version that was committed, and record its effect."""
        base = self.read(data)
        try:
            rows = index_rows(_rows(base.table), keyed=self.keyed)
        except Violation as twice:
            told = base.properties
            raise Violation("O", f"base version {base.version}, {told}: {twice} (L-8)") from twice
        if base.version <= self.latest:
            return  # its number was cleaned up before: it does not count (G-6)
        before = self.states.get(self.latest, {})
        self.states[base.version] = rows
        self.latest = base.version
        load = self.loads.get(base.properties.get(FOLD, ""))
        if load is not None:
            if load.refused or load.version:
                raise Violation(
                    "T",
                    f"a load comes with base version {base.version}, and was told as refused"
                    f" or came with {load.version}",
                )
            load.version = base.version
            done = Effect(base.version, step, load.begun, dict(load.rows), load.replaces)
            self.effects.append(done)
        elif base.properties["kind"] in {"plain", "restore"}:
            changed = {
                ident: rows.get(ident)
                for ident in {**before, **rows}
                if before.get(ident) != rows.get(ident)
            }
            if changed:
                self.effects.append(Effect(base.version, step, 0, changed))

    def told(self, job: str, version: int | None) -> None:
        """The caller of a load was told that it is in that version; None: that nothing was loaded,
        and that it may try again."""
        load = self.loads[job]
        if version is None:
            load.refused = True
            if load.version:
                raise Violation("T", f"a load told as refused is in base version {load.version}")
        elif load.version != version:
            raise Violation("D", f"a load told to be in version {version} is in {load.version}")

    def fits(self, truth: ShardTruth, position: int, found: State, since: int, until: int) -> bool:
        """True if a view of the log through `position`, on a version from `since` to `until`, may
        hold what was found."""
        state = truth.state(position)
        written: dict[Ident, int] = {}
        for number in range(1, position + 1):
            entry = truth.log.get(number)
            for row in entry.rows if entry is not None else ():
                written[identity(row, keyed=self.keyed)] = entry.step if entry else 0
        least = sum(effect.version <= since for effect in self.effects)
        most = sum(effect.version <= until for effect in self.effects)
        return any(
            self._matches(state, written, found, self.effects[:count])
            for count in range(least, most + 1)
        )

    def _matches(
        self,
        state: State,
        written: Mapping[Ident, int],
        found: State,
        effects: list[Effect],
    ) -> bool:
        idents = {*state, *found, *(ident for effect in effects for ident in effect.rows)}
        for ident in idents:
            at = written.get(ident, _NEVER)
            allowed: list[Row | None] = [state.get(ident)]
            for effect in effects:
                if ident in effect.rows or effect.replaces:
                    became = effect.rows.get(ident)
                    if at < effect.begun:
                        allowed = [became]
                    elif at <= effect.step:
                        allowed.append(became)
            if found.get(ident) not in allowed:
                return False
        return True


def _rows(table: pa.Table) -> list[Row]:
    columns = [table.column(name).to_pylist() for name in _COLUMNS]
    return [(*row, False) for row in zip(*columns, strict=True)]
