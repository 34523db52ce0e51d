"""What happens to the machines that processes run on: pauses, and disks that go and come back.

A paused machine is one that was suspended, or restored from a snapshot: its processes stand still,
and so do its clocks. The boot clock never learns for how long; the wall clock is corrected some
time later, or never. A restarted process runs on the same machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.scheduler import Actor, Scheduler
from simulator.world import World, machine_of


@dataclass
class Machines:
    """All machines of a run, by the name of the process that lives there."""

    scheduler: Scheduler
    world: World
    entries: Counter[str] = field(default_factory=Counter)
    """How many log entries each machine began to write."""
    _pauses: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _due: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def pause(self, name: str, number: int, steps: int, set_right: int) -> None:
        """Pause the machine before its entry `number` for `steps`; its wall clock is corrected
        `set_right` steps later, or never if that is negative."""
        self._pauses[name, number] = (steps, set_right)

    def on_entry(self, actor: Actor) -> None:
        """A process is about to write an entry of a log."""
        name = machine_of(actor)
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

    def unmount(self, name: str, step: int, steps: int, uri: str, view: str) -> None:
        """From `step` on, for `steps`, the machine sees `view` at `uri`."""

        def begin() -> None:
            self.world.mounts[name, uri] = view
            self.world.fired["unmounted"] += 1
            self.scheduler.note(name, f"sees {view} at {uri}")

        def end() -> None:
            if self.world.mounts.pop((name, uri), None) is not None:
                self.scheduler.note(name, f"sees {uri} again")

        self.at(step, begin)
        self.at(step + steps, end)

    def at(self, step: int, do: Callable[[], None]) -> None:
        """Call `do` at that step."""
        self._due.append((step, do))

    def on_step(self) -> None:
        """Make the calls that are due."""
        if not self._due:
            return
        step = self.scheduler.step
        due = [item for item in self._due if item[0] <= step]
        if due:
            self._due = [item for item in self._due if item[0] > step]
            for _, do in due:
                do()
