"""A cache bounded in bytes."""

from weir.env import SYSTEM
from weir.lake.cache import ByteCache


def test_the_cache_drops_the_least_recently_used_beyond_its_bound() -> None:
    cache: ByteCache[str] = ByteCache(10, SYSTEM)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("b"), cache.get("a"), cache.get("c")) == (None, "A", "C")
    assert cache.bytes == 8
    assert cache.put("huge", "H", 11) == "H"
    assert cache.get("huge") is None
    cache.put("a", "A2", 2)
    assert cache.bytes == 6
    cache.drop("a")
    cache.drop("a")
    assert cache.bytes == 4
    assert cache.get_or_make("d", lambda: "D", lambda _: 1) == "D"
    assert cache.get_or_make("d", lambda: "other", lambda _: 1) == "D"
