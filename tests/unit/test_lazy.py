"""Values computed on first access: once, and in parallel for different objects."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import weir
from weir import aio
from weir.env import SYSTEM
from weir.lazy import Lazy
from weir.search.fresh import MemoryTexts, MemoryVectors
from weir.search.lance_texts import LanceTexts
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


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


def test_a_table_whose_store_hangs_keeps_no_other_one_waiting(tmp_path) -> None:
    faulty = FaultyStores()
    uris = [str(tmp_path / name) for name in ("slow", "other")]
    for uri in uris:
        with weir.create(uri, SCHEMA, primary_key="id", env=faulty.env).writer() as writer:
            writer.put([{"id": 1}])
    slow, other = (weir.open(uri, env=faulty.env) for uri in uris)
    gate = faulty.at(slow.uri).on("get", "_versions/*").pause()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(slow.count)
        try:
            gate.wait_reached()
            assert pool.submit(other.count).result(timeout=10) == 1
        finally:
            gate.release()
        assert waiting.result(timeout=10) == 1


def test_a_task_whose_checkpoint_is_hard_to_find_keeps_no_other_one_waiting(tmp_path) -> None:
    faulty = FaultyStores()
    uris = [str(tmp_path / name) for name in ("slow", "other")]
    for uri in uris:
        weir.create(uri, SCHEMA, primary_key="id", env=faulty.env).checkpoint(name="here")

    async def run() -> None:
        slow, other = [await aio.open(uri, env=faulty.env) for uri in uris]
        gate = faulty.at(slow.uri).on("*", "_weir/checkpoints*").pause()
        waiting = asyncio.create_task(slow.scan(checkpoint="here").count())
        try:
            await asyncio.to_thread(gate.wait_reached)
            found = await asyncio.wait_for(other.scan(checkpoint="here").count(), 10)
        finally:
            gate.release()
        assert (found, await waiting) == (0, 0)

    asyncio.run(run())
