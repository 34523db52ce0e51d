"""F-16: an interrupt ends one call and nothing else, and so do the cancelling of its task and its
timeout. A sample of what `make interrupts` runs."""

from collections.abc import Iterator

import pytest

from tests.interrupts.__main__ import Plan, Runner, run
from tests.interrupts.cases import VERBS, cases
from tests.interrupts.reads import READS

POINTS = 2
"""Points of each case. They are spread over the case's own, and are the same in every run."""
SHARDED = ("cancelled_arrow", "cancelled_first")
"""Cancelled at several shards, some of which are perhaps not open."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """One process for the trials of all tests: each trial has a table of its own."""
    with Runner() as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", [verb.name for verb in VERBS if verb.strike == "interrupt"])
def test_f16_an_interrupt_hangs_nobody_and_every_row_is_reported_once(
    runner: Runner, verb: str
) -> None:
    assert run(Plan(verb, POINTS), runner) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [
        "put-table-memtable-beside",
        "insert-shard-memtable-beside",
        "put_once-shard-memtable-alone",
        "decide_once-shard-memtable-beside",
    ],
)
def test_f16_real_signals_hang_nobody_and_every_row_is_reported_once(
    runner: Runner, case: str
) -> None:
    assert run(Plan(case, signals=2), runner) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strike", ["cancel", "timeout"])
def test_f16_a_call_that_is_given_up_hangs_nobody_and_every_row_is_reported_once(
    runner: Runner, strike: str
) -> None:
    names = [
        case.name
        for case in cases()
        if case.verb.strike == strike and case.beside and case.memtable
        # Tasks of one shard share its entries; a timeout may strike at one shard of several.
        if case.sharded == (strike == "timeout" or case.verb.name in SHARDED)
    ]
    assert run(Plan(",".join(names), POINTS), runner) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", list(READS))
def test_f16_an_interrupted_read_leaves_a_handle_that_reads_the_same_rows(
    runner: Runner, verb: str
) -> None:
    assert run(Plan(verb, POINTS), runner) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_f16_real_signals_leave_a_handle_that_reads_the_same_rows(runner: Runner) -> None:
    assert run(Plan("read_text-log", signals=2), runner) == []
