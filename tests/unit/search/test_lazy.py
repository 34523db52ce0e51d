"""Values computed on first access: once, and in parallel for different objects."""

import threading

from weir.env import SYSTEM
from weir.search.fresh import MemoryTexts, MemoryVectors
from weir.search.lance_texts import LanceTexts
from weir.search.lazy import Lazy


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    @Lazy
    def value(self) -> int:
        """What it says."""
        self.calls += 1
        return self.calls


def test_a_value_is_worked_out_once_and_can_be_forgotten() -> None:
    one = Counted()
    assert (one.value, one.value, one.calls) == (1, 1, 1)
    del one.value
    assert one.value == 2
    assert Counted.value.__doc__ == "What it says."


def test_two_objects_do_not_wait_for_each_other() -> None:
    """With one lock per class, as in `functools.cached_property`, the two would never meet."""
    together = threading.Barrier(2, timeout=10)

    class Meets:
        @Lazy
        def value(self) -> bool:
            return together.wait() >= 0

    assert SYSTEM.threads.map(lambda one: one.value, [Meets(), Meets()], workers=2) == [True, True]


def test_what_levels_are_asked_side_by_side_is_lazy() -> None:
    for kind, name in ((MemoryVectors, "_rough"), (MemoryTexts, "stats"), (LanceTexts, "stats")):
        assert isinstance(vars(kind)[name], Lazy)
