"""The limits of a keeper: kept on average, and no job waits for ever."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.support.moments import SteppedClock, make, put
from weir.env import Env
from weir.keep.keeper import Keeper
from weir.keep.policy import KeeperPolicy
from weir.lake.datasets import Datasets
from weir.meters import KEEP_PAUSED, Meters
from weir.pace import Pace
from weir.store.api import Store
from weir.store.open import open_store

SOON = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=1), gc=0.0, min_age=0)


class Clock(SteppedClock):
    """Nobody waits for it: a sleep moves it forward."""

    @property
    def passed(self) -> float:
        return self.time - 1_000_000.0


def paced(requests: float | None = None, nbytes: float | None = None) -> tuple[Env, Clock]:
    clock = Clock()
    env = Env(clock=clock)
    pace = Pace(clock, env.threads, env.meters)
    pace.limit(requests, nbytes)
    return replace(env, pace=pace), clock


def store(env: Env, name: str) -> Store:
    return open_store(f"memory://pace/{name}", env=env)


def test_requests_wait_for_their_turn() -> None:
    env, clock = paced(requests=2)
    there = store(env, "requests")
    for n in range(10):
        there.head(f"a{n}")
    assert clock.passed == pytest.approx(4.5), "the first at once, then two a second"
    there.head_many([f"a{n}" for n in range(10)])
    assert clock.passed == pytest.approx(9.5), "many in one call wait as each alone"
    list(there.list("nothing"))
    assert clock.passed == pytest.approx(10)


def test_bytes_are_paid_for_by_the_next_request() -> None:
    env, clock = paced(nbytes=100)
    there = store(env, "bytes")
    there.put("a", bytes(500))
    assert not clock.passed
    there.get("a")
    assert clock.passed == pytest.approx(5)
    there.head("a")
    assert clock.passed == pytest.approx(10)
    there.get_many(["a", "a", "b"])
    there.head("a")
    assert clock.passed == pytest.approx(20)
    there.put_parts("c", lambda: iter([bytes(100), bytes(100)]))
    there.delete(["a"])
    assert clock.passed == pytest.approx(22)


def test_l4_what_renews_a_claim_is_counted_and_never_waits() -> None:
    env, clock = paced(requests=1, nbytes=100)
    there = store(env, "claims")
    there.put("a", bytes(100_000))
    there.put_if_absent("b", bytes(100))
    there.now()
    assert not clock.passed
    there.head("a")
    assert clock.passed == pytest.approx(1001)


def test_lifting_the_limits_lets_a_request_go_that_waits_already() -> None:
    clock = Clock()
    env = Env(clock=clock)
    pace = Pace(clock, env.threads, env.meters)
    pace.limit(requests=0.001, nbytes=None)
    pace.wait()
    go_on = clock.sleep

    def sleep(seconds: float) -> None:
        go_on(seconds)
        pace.lift()

    clock.sleep = sleep  # type: ignore[method-assign]
    pace.wait()
    assert clock.passed == 1.0


def test_another_limit_counts_for_what_was_spent_before() -> None:
    """A policy that is read again helps at once, also while hours of debt are waited for."""
    clock = Clock()
    env = Env(clock=clock)
    pace = Pace(clock, env.threads, env.meters)
    pace.limit(requests=None, nbytes=1_000)
    pace.charge(nbytes=100_000_000)  # what one long call of Lance has spent
    go_on = clock.sleep

    def sleep(seconds: float) -> None:
        go_on(seconds)
        pace.limit(requests=None, nbytes=50_000_000)

    clock.sleep = sleep  # type: ignore[method-assign]
    pace.wait()
    assert clock.passed == pytest.approx(1 + 99_999_000 / 50_000_000)


def filled(place: Path, rows: int = 1) -> weir.Table:
    table = make(place, shards=1)
    with table.writer() as writer:
        put(writer, list(range(rows)), "a")
    return table


def keep(place: Path, **limits: int) -> tuple[Clock, Meters]:
    clock = Clock()
    env = Env(clock=clock)
    env.meters.turn_on()
    policy = KeeperPolicy(jobs=1, defaults=SOON, **limits)
    done = Keeper([str(place)], policy, env=env).once()
    assert sorted((each.job, each.result) for each in done) == [
        ("compact", "succeeded"),
        ("gc", "succeeded"),
    ]
    return clock, env.meters


def paused(meters: Meters) -> float:
    (said,) = re.findall(rf"^{KEEP_PAUSED.name} (.*)$", meters.page(), re.MULTILINE)
    return float(said)


def test_a_keeper_without_limits_pauses_for_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "t")
    _, meters = keep(tmp_path)
    assert paused(meters) == 0


def test_jobs_end_at_the_least_pace_and_take_their_time(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    _, meters = keep(tmp_path, requests_per_second=1)
    assert paused(meters) > 20, "it made more than twenty requests"
    assert weir.open(table.uri).stats().base_rows == 1


def test_the_bytes_that_lance_reads_and_writes_count(tmp_path: Path) -> None:
    """The rows are in no request of weir's own: an SSTable becomes a file of the base."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.binary())])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    noise = np.random.default_rng(1)
    with table.writer() as writer:
        writer.put([{"id": n, "v": noise.bytes(4096)} for n in range(256)])
    _, meters = keep(tmp_path, bytes_per_second=1 << 16)
    assert paused(meters) > 25, "1 MiB was read and written, at 64 KiB a second"


def test_a_keeper_asks_lance_of_the_table_at_work_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked all tables at every request: a look at each of a thousand took ten times as long as
    one at each of a hundred."""
    asked: Counter[str] = Counter()
    spent = Datasets.spent

    def counted(self: Datasets) -> tuple[int, int]:
        asked[self.uri] += 1
        return spent(self)

    monkeypatch.setattr(Datasets, "spent", counted)
    tables = [make(tmp_path / f"t{n}", shards=1) for n in range(4)]
    kept = Keeper([str(tmp_path)], KeeperPolicy(jobs=1), env=Env())
    kept.once()
    asked.clear()
    (first,) = [each for each in kept.all_tables if each.uri == tables[0].uri]
    kept.look_after(first)
    assert set(asked) == {first.uri}
