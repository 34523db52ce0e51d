"""Every public verb on real Lance, against a dictionary: fixed seeds. `make fuzz` runs more."""

import pytest

from tests.fuzz.__main__ import run, shrink

SEEDS = range(1, 9)
STEPS = range(25)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_equals_its_model(seed: int) -> None:
    failure = run(seed, STEPS)
    assert failure is None, str(shrink(failure))
