"""A map over threads ends with its first error, and with Ctrl-C, which disorders no thread."""

import signal
import threading
from contextlib import suppress

import pytest

from tests.interrupts.points import Points
from tests.support.interrupting import interrupt_each
from weir.env import SystemThreads

THREADS = SystemThreads()


class Items:
    """Items of a map, and which of them were run."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.go_on = threading.Event()
        self.another = threading.Event()

    def fail_at_3(self, item: int) -> int:
        self.ran.append(item)
        if item == 3:
            raise ValueError(f"item {item}")
        return item

    def interrupt_here(self, item: int) -> None:
        """The caller's own thread is interrupted, while helpers fail too."""
        self.ran.append(item)
        if threading.current_thread() is threading.main_thread():
            self.go_on.set()
            signal.raise_signal(signal.SIGINT)
        self.go_on.wait(10)
        raise ValueError(f"item {item}")

    def interrupt_the_wait(self, item: int) -> None:
        """The caller has no item left and waits for a helper when it is interrupted."""
        self.ran.append(item)
        if threading.current_thread() is not threading.main_thread():
            if self.go_on.is_set():
                self.another.set()
                return
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            self.go_on.wait(1)  # an interrupted map waits for what has begun


@pytest.mark.parametrize("workers", [1, 4])
def test_a_map_stops_after_the_first_error(workers: int) -> None:
    items = Items()
    with pytest.raises(ValueError, match="item 3"):
        THREADS.map(items.fail_at_3, list(range(1000)), workers=workers)
    assert len(items.ran) < 500


def test_a_map_returns_its_results_in_order() -> None:
    assert THREADS.map(lambda i: i * i, list(range(100)), workers=8) == [i * i for i in range(100)]


def test_an_interrupted_map_stops_and_hides_it_behind_no_other_error() -> None:
    items = Items()
    with pytest.raises(KeyboardInterrupt):
        THREADS.map(items.interrupt_here, list(range(1000)), workers=4)
    assert len(items.ran) < 500


def test_a_map_interrupted_in_its_wait_does_not_begin_another_item() -> None:
    items = Items()
    with pytest.raises(KeyboardInterrupt):
        THREADS.map(items.interrupt_the_wait, list(range(100_000)), workers=2)
    items.go_on.set()
    assert not items.another.wait(0.1)


def test_f16_a_thread_whose_start_was_interrupted_runs_or_is_none() -> None:
    """`Thread.start` itself may leave a thread that waits for ever to say that it has started."""

    def scenario(points: Points) -> None:
        ran = threading.Event()
        with suppress(KeyboardInterrupt), points:
            THREADS.start(ran.set, name=f"interrupted at {points.target}")
        if any(thread.name.endswith(points.target) for thread in threading.enumerate()):
            assert ran.wait(10)

    assert interrupt_each(scenario, "SystemThreads.start") >= 5
