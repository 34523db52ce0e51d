"""INVARIANTS 10.2: the protocol of collection, every interleaving at small bounds."""

import pytest

from weir.testing.gc_model import NEVER, Bounds, Broken, explore, main

# What each lock alone must do, and both.
BOTH = {"retention": NEVER, "fence_ttl": 0}
FIRST_ENTRIES = {"retention": NEVER, "fence_ttl": NEVER}
STALE_OWNERSHIP = {"retention": 0, "fence_ttl": 0}
NEITHER = {"retention": 0, "fence_ttl": NEVER}


@pytest.mark.parametrize("locks", [BOTH, FIRST_ENTRIES, STALE_OWNERSHIP])
@pytest.mark.parametrize(
    ("roles", "collectors"), [(("w11", "w11"), 2), (("w10", "w10", "w01"), 1)], ids=str
)
def test_g7_either_lock_keeps_every_property(locks, roles, collectors) -> None:
    assert explore(Bounds(roles, collectors, **locks)) > 1000


def test_g7_without_locks_the_checker_finds_the_story() -> None:
    with pytest.raises(Broken) as found:
        explore(Bounds(("w11", "w11"), **NEITHER))
    assert found.value.rule == "acked"
    told = " / ".join(found.value.trace)
    for part in ("claims epoch 2", "flushes through", "deletes 2", "acknowledges 2"):
        assert part in told
    assert told.index("deletes 2") < told.index("of epoch 1 acknowledges 2")


def test_g7b_a_retention_of_twice_the_ttl_is_enough_and_less_than_the_ttl_is_not() -> None:
    assert explore(Bounds(("w10", "w01"), ticks=3, retention=2, fence_ttl=1)) > 1000
    with pytest.raises(Broken, match="acked"):
        explore(Bounds(("w10", "w11"), ticks=3, retention=1, fence_ttl=2))


def test_g7a_alone_protects_native_writers() -> None:
    assert explore(Bounds(("n10", "w11"), **FIRST_ENTRIES)) > 500
    assert explore(Bounds(("n10", "n10", "w01"), **FIRST_ENTRIES)) > 1000
    with pytest.raises(Broken, match="acked"):
        explore(Bounds(("n10", "w11"), **STALE_OWNERSHIP))


def test_g7a_needs_the_entries_beside_a_silent_claim() -> None:
    """Found by this checker: a claimant that sleeps before its sentinel aims at no first entry."""
    roles = ("w30", "n10", "w01")
    with pytest.raises(Broken, match="twice|acked"):
        explore(Bounds(roles, **FIRST_ENTRIES, silent_claims=False))


@pytest.mark.slow
def test_g7a_with_them_nothing_breaks() -> None:
    assert explore(Bounds(("w30", "n10", "w01"), **FIRST_ENTRIES)) > 10_000


def test_the_command_prints_how_it_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["w11", "w11", "--retention", "0", "--fence-ttl", "inf"]) == 1
    assert "BROKEN acked" in capsys.readouterr().out
    assert main(["w11"]) == 0
