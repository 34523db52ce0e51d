"""F-16: Ctrl-C ends one read of one thread. The next read of the same handle gives the same rows.

`tests.interrupts` interrupts every read at every point; here are the points that once failed.
"""

from itertools import count
from pathlib import Path

import pytest

from tests.interrupts.points import Points
from tests.interrupts.reads import ReadCase
from tests.support.interrupting import interrupt_each
from weir.env import SYSTEM
from weir.lake.cache import ByteCache

HELD = r"^weir\.(read\.cache:_HeldTail|merge\.levels:MemView|merge\.levels:MemLevel\._app)"
COMMON = r"^weir\.(read\.common:CommonLevel|merge\.levels:MemView|merge\.levels:MemLevel\._app)"
POSTINGS = r"^weir\.search\.memory:"


@pytest.mark.parametrize(
    ("verb", "layout", "ways"),
    [
        ("read_scan", "log", HELD),
        ("read_scan", "unkeyed", COMMON),
        ("read_text", "log", POSTINGS),
    ],
    ids=["tail", "common level", "postings"],
)
def test_f16_what_a_handle_keeps_is_whole_or_as_it_was(
    tmp_path: Path, verb: str, layout: str, ways: str
) -> None:
    numbers = count()

    def scenario(points: Points) -> None:
        case = ReadCase(verb, layout)
        assert case.trial(str(tmp_path / str(next(numbers))), points) == ("ok", "")

    assert interrupt_each(scenario, ways) >= 8


def test_f16_a_cache_knows_its_size_though_a_read_was_interrupted() -> None:
    def scenario(points: Points) -> None:
        cache: ByteCache[str] = ByteCache(10, SYSTEM)
        cache.put("a", "a", 4)
        cache.put("b", "b", 4)
        try:
            with points:
                cache.put("a", "a", 6)
                cache.put("c", "c", 8)
                cache.drop("c")
        except KeyboardInterrupt:
            pass
        for name in "abc":
            cache.drop(name)
        assert cache.bytes == 0

    assert interrupt_each(scenario, "ByteCache") >= 5
