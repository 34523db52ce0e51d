"""L-4: a claim at work keeps itself alive, for compactions, loads and restores alike.

Whoever finds a claim older than its lease takes it over. So a claim is renewed by a thread of its
own, however long its work takes and whether or not that work reports anything.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.support.moments import again, expect, make, put, rows
from weir.errors import CommitConflict
from weir.lake.api import Base
from weir.lake.base import fold
from weir.upkeep import tasks
from weir.upkeep.compact import claim as claims
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.compact.run import compact
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.loads import PreparedLoad, load
from weir.upkeep.restore import restore


@pytest.fixture(autouse=True)
def _renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEW_SECONDS", 0.01)


def await_renewals(table: weir.Table, count: int = 2) -> None:
    """Return when the claim on the table has been renewed; nobody reports any progress."""
    jobs = Jobs(table.core.store)
    first = jobs.latest()
    assert first is not None
    assert first.is_open
    pause = threading.Event()
    for _ in range(3000):
        latest = jobs.latest()
        assert latest is not None
        assert (latest.token, latest.state) == (first.token, first.state)
        if latest.seq >= first.seq + count:
            assert latest.job == first.job, "a renewal keeps the plan"
            return
        pause.wait(0.01)
    pytest.fail("the claim was not renewed")


def filled(tmp_path: Path) -> weir.Table:
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, range(5), "a")
    return table


def _compaction(table: weir.Table, wait: Callable[[], None]) -> None:
    real = tasks.run_task

    def slow(core: weir.routing.core.Core, task: tasks.Task) -> tasks.Result:
        wait()
        return real(core, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "run_task", slow)
        assert compact(again(table).core).tasks == 1


def _load(table: weir.Table, wait: Callable[[], None], *, replaces: bool) -> None:
    def write(base: Base) -> PreparedLoad:
        wait()
        new = pa.Table.from_pylist([{"id": 9, "v": "loaded"}], schema=base.schema.plain)
        return PreparedLoad(fold.write_rows(base, new), 1)

    load(again(table).core, write, job_id="job", replaces=replaces)


def _restore(table: weir.Table, wait: Callable[[], None]) -> None:
    def hook(step: str) -> None:
        if step == "base":
            wait()

    restore(watched(again(table).core, "restore", hook), table.checkpoint("all"))


WORK: dict[str, Callable[[weir.Table, Callable[[], None]], None]] = {
    "compaction": _compaction,
    "load": lambda table, wait: _load(table, wait, replaces=False),
    "overwrite": lambda table, wait: _load(table, wait, replaces=True),
    "restore": _restore,
}


@pytest.mark.parametrize("work", WORK)
def test_l4_a_claim_is_renewed_while_its_work_says_nothing(tmp_path: Path, work: str) -> None:
    table = filled(tmp_path)
    before = threading.active_count()
    WORK[work](table, lambda: await_renewals(table))
    latest = Jobs(table.core.store).latest()
    assert latest is not None
    assert not latest.is_open
    assert all(thread.name != "weir-claim" for thread in threading.enumerate()), before
    want = {
        "overwrite": {9: "loaded"},
        "load": expect((range(5), "a"), ([9], "loaded")),
    }
    assert rows(again(table)) == want.get(work, expect((range(5), "a")))


def test_l4_a_claim_that_was_taken_over_is_renewed_no_more(tmp_path: Path) -> None:
    table = filled(tmp_path)
    claim = without_compaction(table.core)
    lost = claim.__enter__()
    with without_compaction(again(table).core):
        await_renewals(table)
    assert not lost.is_held
    with pytest.raises(CommitConflict):
        claim.__exit__(None, None, None)
    latest = Jobs(table.core.store).latest()
    assert latest is not None
    assert not latest.is_open, "the taken over claim ended, and nothing followed it"


def test_l4_work_that_fails_leaves_its_claim_and_no_thread(tmp_path: Path) -> None:
    table = filled(tmp_path)
    with pytest.raises(RuntimeError), without_compaction(table.core):
        raise RuntimeError
    latest = Jobs(table.core.store).latest()
    assert latest is not None
    assert latest.is_open
    assert all(thread.name != "weir-claim" for thread in threading.enumerate())


class FailingRunner:
    """An engine that loses its connection to the store."""

    name = "local"
    slots = 1

    def run(self, *_args: object) -> list[tasks.Result]:
        raise weir.StoreError("the store is away")


def test_l4_a_compaction_that_failed_keeps_the_next_one_waiting_for_no_lease(
    tmp_path: Path,
) -> None:
    table = filled(tmp_path)
    with pytest.raises(weir.StoreError):
        compact(table.core, engine=FailingRunner())
    report = again(table).compact()
    assert report.skipped is None
    assert report.rows_written == 5


def _failed_at(step: str, error: Exception) -> Callable[[str], None]:
    def hook(reached: str) -> None:
        if reached == step:
            raise error

    return hook


@pytest.mark.parametrize("step", ["claimed", "fenced", "planned", "written"])
@pytest.mark.parametrize("error", [weir.StoreError("the store is away"), OSError("Spark is gone")])
def test_l4_a_claim_that_failed_anywhere_keeps_nobody_waiting_for_its_lease(
    tmp_path: Path, step: str, error: Exception
) -> None:
    table = filled(tmp_path)
    with pytest.raises(type(error)):
        compact(watched(again(table).core, "compact", _failed_at(step, error)))
    report = again(table).compact()
    assert report.skipped is None
    assert report.rows_written == 5


def test_l4_a_failure_after_the_commit_is_completed_by_the_next_compaction(tmp_path: Path) -> None:
    table = filled(tmp_path)

    def hook(step: str) -> None:
        if step == "committed":
            raise weir.StoreError("the store is away")

    with pytest.raises(weir.StoreError):
        compact(watched(again(table).core, "compact", hook))
    latest = Jobs(table.core.store).latest()
    assert latest is not None
    assert latest.job is not None
    assert again(table).compact().completed == latest.job.id
    assert rows(again(table)) == expect((range(5), "a"))
