"""Processes that die: after the n-th write every request to any store fails."""

import dataclasses
from collections.abc import Callable
from typing import Any

import weir.shard.opening  # noqa: F401  (loaded before its neighbours are patched)
from weir.errors import StoreDenied
from weir.lake.pylance_lake import PylanceLake
from weir.table import Table
from weir.testing.faults import WRITES


class Life:
    """Counts the writes of one process over all its stores and named steps, then kills it."""

    def __init__(self, writes: int | None = None, when: str = "after") -> None:
        self.left = writes
        self.when = when
        self.writes = 0
        self.verb = ""
        """The write to a store that comes next, or is under way."""
        self.dead = False

    def store(self, inner: Any) -> "Mortal":
        return inner if isinstance(inner, Mortal) else Mortal(inner, self)

    def write(self, apply: Callable[[], Any]) -> Any:
        self.check()
        self.writes += 1
        last = self.left is not None and self.writes >= self.left
        if last and self.when == "before":
            self.dead = True
        self.check()
        try:
            return apply()
        finally:
            if last:
                self.dead = True

    def check(self) -> None:
        if self.dead:
            raise StoreDenied("this process is dead")

    def table(self, table: Table) -> Table:
        """The same table, opened by this process."""
        core = table.core
        store = self.store(core.store)
        lake = PylanceLake(core.uri, None, store, env=core.env)
        wal = store if core.wal is core.store else self.store(core.wal)
        made = dataclasses.replace(core, store=store, wal=wal, lake=MortalLake(lake, self))
        lake.ask_before_changes(made.record_number)
        opened = made.wal_stores._open_wal
        made.wal_stores._open_wal = lambda uri: self.store(opened(uri))
        folder = made.wal_stores._open_folder
        made.wal_stores._open_folder = lambda uri: self.store(folder(uri))
        return Table(made)


class Mortal:
    """A store in a process that may die."""

    def __init__(self, inner: Any, life: Life) -> None:
        self.inner = inner
        self.life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in WRITES:
                self.life.verb = name
                answer = self.life.write(lambda: found(*args, **kwargs))
            else:
                self.life.check()
                answer = found(*args, **kwargs)
            self.life.check()
            return answer

        return call


LAKE_WRITES = (
    "protect_version",
    "release_version",
    "restore",
    "fence_base",
    "replace_mem_wal",
    "commit_fold",
    "mark_compacted",
    "shallow_clone",
    "cleanup_old_versions",
    "commit_files",
    "optimize_indices",
    "create_index",
    "drop_index",
    "add_columns",
    "drop_columns",
    "rename_column",
    "drop_expired",
)


class MortalLake:
    """A lake whose Lance commits count as writes of the process."""

    def __init__(self, inner: PylanceLake, life: Life) -> None:
        self.inner = inner
        self.life = life

    @property
    def __class__(self) -> Any:  # for `isinstance` checks that distinguish Lance from its model
        return PylanceLake

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError(value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in LAKE_WRITES:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = self.life.write(lambda: found(*args, **kwargs))
            self.life.check()
            return answer

        return call


def die_at_every_write(
    run: Callable[[Life], None],
    check: Callable[[int, bool], None],
    *,
    first: int = 0,
    step: int = 1,
) -> int:
    """Call `run` with a life of 0, 1, 2 ... writes (or from `first` on in steps), and
    `check(n, finished)` after each run. Returns the writes of the one that finished.
    """
    for n in range(first, 400, step):
        life = Life(n) if n else Life(1, "before")
        finished = False
        try:
            run(life)
            finished = not life.dead
        except Exception:
            if not life.dead:
                raise
        check(n, finished)
        if finished:
            return n
    raise AssertionError("it never finished")
