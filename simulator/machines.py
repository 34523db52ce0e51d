"""What happens to the machines processes run on: paused and resumed.

A paused machine is one that was suspended, or restored from a snapshot: its processes stand still,
and so do its clocks. The boot clock never learns how long; the wall clock is set right some time
later, or not at all. A process that is started again is on the same machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.scheduler import Actor, Scheduler


@dataclass
class Machines:
    """All machines of a run, by the name of the process that lives there."""

    scheduler: Scheduler
    actors: dict[str, Actor] = field(default_factory=dict)
    entries: Counter[str] = field(default_factory=Counter)
    """How many entries of a log each began to write."""
    _pauses: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _due: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def start(self, name: str, actor: Actor) -> None:
        """A process runs there now."""
        self.actors[name] = actor

    def pause(self, name: str, number: int, steps: int, set_right: int) -> None:
        """Before its entry of that number it stands still for `steps`; its wall clock is right
        again `set_right` steps later, and never when that is negative."""
        self._pauses[name, number] = (steps, set_right)

    def on_entry(self, actor: Actor) -> None:
        """A process is about to write an entry of a log."""
        name = actor.name.rstrip("'")
        self.entries[name] += 1
        steps, set_right = self._pauses.get((name, self.entries[name]), (0, -1))
        if not steps or actor.paused_at is not None:
            return
        self.scheduler.pause(actor, steps)
        actor.is_torn = True

        def end() -> None:
            actor.resume(self.scheduler.now)
            if set_right >= 0:
                self.at(self.scheduler.step + set_right, actor.set_right)

        self.at(self.scheduler.step + steps, end)

    def at(self, step: int, do: Callable[[], None]) -> None:
        """Let that happen at that step."""
        self._due.append((step, do))

    def on_step(self) -> None:
        """Let happen what is due."""
        if not self._due:
            return
        step = self.scheduler.step
        due = [item for item in self._due if item[0] <= step]
        if due:
            self._due = [item for item in self._due if item[0] > step]
            for _, do in due:
                do()
