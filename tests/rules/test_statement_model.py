"""P-8: the protocol of a statement over several shards, every interleaving of a few processes."""

import pytest

from simulator.statement_model import PLANTS, Broken, explore, main

BREAKS = {
    "check before the fence": ("order", "s1 w1 n1"),
    "apply before it is decided": ("once", "s1 w1 r1"),
    "decide after an abort": ("order", "s1 w1"),
    "read without starting over": ("atomic", "s1 r1"),
    "marks after the claims": ("atomic", "s1 r1"),
    "claim without a look at the chain": ("order", "s1 w1"),
    "apply over what others wrote since": ("value", "s1 n1 r1"),
    "propose beside an open one": ("order", "s1 s2"),
    "apply twice": ("once", "s1 w1"),
    "done before all is applied": ("atomic", "s1 r1"),
}


@pytest.mark.parametrize("roles", ["s1 w1 r1", "s1 n1 c1", "s1 s2 w1", "s1 w1 w2 n1"])
def test_p8_every_interleaving_keeps_statements_whole(roles: str) -> None:
    assert explore(tuple(roles.split())) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("roles", ["s1 w1 c1", "s1 f1 r1", "s1 s2 c1"])
def test_p8_and_with_whoever_finishes_and_two_statements_beside_a_reader(roles: str) -> None:
    assert explore(tuple(roles.split())) > 10_000


@pytest.mark.parametrize("plant", PLANTS)
def test_p8_each_planted_fault_breaks_a_property(plant: str) -> None:
    name, roles = BREAKS[plant]
    with pytest.raises(Broken) as broken:
        explore(tuple(roles.split()), plant=plant)
    assert broken.value.name == name


def test_the_command_line_prints_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["s1", "r1"]) == 0
    assert "no property broken" in capsys.readouterr().out
    assert main(["s1", "r1", "--plant", "read without starting over"]) == 1
    assert "s1 decide" in capsys.readouterr().out
