"""K-3, H-1: upkeep and the writers of one handle, in several threads, do not fence each other."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weir
from tests.support.moments import SCHEMA, again, expect, make, put, rows
from tests.support.threads import Caller
from weir.env import Env
from weir.log.appender import WalAppender
from weir.shard.commit import Committer

A, B, C = range(10), range(5, 20), range(15, 30)


class WatchedGate:
    """A lock that tells when a second thread comes to it."""

    def __init__(self, came: threading.Event) -> None:
        self._lock = threading.Lock()
        self._came = came

    def __enter__(self) -> bool:
        if self._lock.locked():
            self._came.set()
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Story:
    """A table, and a second call that is made while the first one has claimed the shard; the first
    goes on when the second has ended, or waits."""

    def __init__(self, place: Any, *, has_rows: bool = True) -> None:
        self.went_on = threading.Event()
        self.second: Caller | None = None
        self._call: Callable[[], Any] | None = None
        self.table = make(place, 1, env=Env(failpoint=self._at))
        if has_rows:
            put(again(self.table, env=Env()).writer(), A, "a")  # never closed: the log holds them
        shard = self.table.shards()[0].id
        self.table.core._opening[shard] = WatchedGate(self.went_on)  # type: ignore[assignment]

    def interrupt_with(self, call: Callable[[], Any]) -> None:
        self._call = call

    def _at(self, step: str) -> None:
        call = self._call
        if step == "claim.fenced" and call is not None:
            self._call = None

            def run() -> Any:
                try:
                    return call()
                finally:
                    self.went_on.set()

            self.second = Caller(run)
            assert self.went_on.wait(10)


@pytest.mark.parametrize("has_rows", [True, False])
def test_k3_a_checkpoint_flushes_through_the_writer_that_its_handle_was_opening(tmp_path, has_rows):
    """Without rows the checkpoint only moves R, over the fence that the claim has just written."""
    story = Story(tmp_path / "t", has_rows=has_rows)
    table = story.table
    story.interrupt_with(lambda: table.checkpoint("all"))
    with table.shards()[0].writer() as writer:
        assert story.second is not None
        made = story.second.result()
        put(writer, B, "b")  # not fenced
        assert made.shards[0].closed
        assert made.shards[0].epoch == writer.epoch
    before = expect((A, "a")) if has_rows else {}
    assert rows(table, checkpoint=made) == before
    assert rows(table) == before | expect((B, "b"))


def test_k3_a_shard_without_rows_opens_beside_the_checkpoint_of_another_process(tmp_path):
    """It moves R over the fence of the claim, in the claim's own epoch: nobody took the shard."""
    story = Story(tmp_path / "t", has_rows=False)
    other = again(story.table, env=Env())
    story.interrupt_with(lambda: other.checkpoint("all"))
    with story.table.writer() as writer:
        put(writer, B, "b")
    assert story.second is not None
    assert rows(other, checkpoint=story.second.result()) == {}
    assert rows(other) == expect((B, "b"))


@pytest.mark.parametrize("job", ["checkpoint", "compact"])
def test_h1_a_writer_opens_after_the_upkeep_that_has_claimed_its_shard(tmp_path, job):
    story = Story(tmp_path / "t")
    table = story.table
    story.interrupt_with(table.shards()[0].writer)
    if job == "checkpoint":
        made = table.checkpoint("all")
        assert rows(table, checkpoint=made) == expect((A, "a"))
    else:
        assert table.compact(fold_wal=True).notes == []
    assert story.second is not None
    with story.second.result() as writer:
        put(writer, B, "b")
    assert rows(table) == expect((A, "a"), (B, "b"))


def test_k10_a_checkpoint_whose_flush_another_claim_fenced_begins_again(tmp_path):
    put(make(tmp_path / "t", 1).writer(), A, "a")  # never closed: the log holds them
    others: list[weir.TableWriter] = []

    def claim(step: str) -> None:
        if step == "claim.fenced" and not others:
            others.append(weir.open(str(tmp_path / "t")).writer())
            put(others[0], B, "b")

    table = weir.open(str(tmp_path / "t"), env=Env(failpoint=claim))
    made = table.checkpoint("all")
    assert rows(table, checkpoint=made) == expect((A, "a"), (B, "b"))


def test_k3_a_checkpoint_flushes_through_a_writer_that_another_thread_closes(tmp_path, monkeypatch):
    table = make(tmp_path / "t", 2)
    first, second = table.shards()
    goes_on, on_its_way = threading.Event(), threading.Event()
    write, drain = WalAppender.write, Committer.drain

    def held_up(self: WalAppender, entry: Any) -> Any:
        on_its_way.set()
        assert goes_on.wait(10)
        return write(self, entry)

    def begun(self: Committer, timeout: float | None = None) -> None:
        goes_on.set()
        drain(self, timeout)

    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    writer = first.writer(config)
    writer.intake.owns = None  # all rows go to this shard
    put(writer, A, "a")
    monkeypatch.setattr(WalAppender, "write", held_up)
    closing = Caller(writer.close)
    assert on_its_way.wait(10)
    second.writer().close()  # the handle forgets writers that have ended, and only those
    monkeypatch.setattr(Committer, "drain", begun)
    with contextlib.ExitStack() as whatever_comes:
        whatever_comes.callback(goes_on.set)
        made = table.checkpoint("all")
    closing.result()
    assert made.shards[0].epoch == writer.epoch
    assert rows(table, checkpoint=made) == rows(table) == expect((A, "a"))


@pytest.mark.parametrize("is_durable", [True, False])
def test_h1_checkpoints_beside_a_thread_that_opens_and_closes_writers(tmp_path, is_durable):
    table = make(tmp_path / "t", 2)
    config = weir.WriterConfig(durable_write=is_durable)
    is_over = threading.Event()
    closed: list[int] = []

    def write() -> None:
        while not is_over.is_set():
            number = len(closed)
            with table.writer(config) as writer:
                put(writer, range(3 * number, 3 * number + 3), "x")
            closed.append(number)

    writing = Caller(write)
    try:
        for _ in range(15):
            before = len(closed)
            made = table.checkpoint("all")
            assert all(pin.closed for pin in made.shards)
            assert set(rows(table, checkpoint=made)) >= set(range(3 * before))
    finally:
        is_over.set()
        writing.result()
    assert set(rows(table)) == set(range(3 * len(closed)))


def test_p6_a_cut_beside_sessions_that_put_once_has_the_tokens_of_its_rows_and_no_other(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA)  # no key: a batch applied twice would show
    is_over = threading.Event()

    def batch(version: int) -> list[dict[str, object]]:
        return [{"id": version, "v": "x"}]

    def write() -> None:
        for version in itertools.count():
            if is_over.is_set():
                return
            with table.writer() as writer:
                assert writer.put_once(batch(version), app="q", version=version)

    writing = Caller(write)
    try:
        made = [table.checkpoint("all") for _ in range(10)]
    finally:
        is_over.set()
        writing.result()
    for number, checkpoint in enumerate(made):
        clone = table.clone(str(tmp_path / f"c{number}"), checkpoint)
        held = sorted(clone.scan().to_table().column("id").to_pylist())
        assert held == list(range(len(held)))
        with clone.writer() as writer:
            if held:
                assert not writer.put_once(batch(held[-1]), app="q", version=held[-1])
            assert writer.put_once(batch(len(held)), app="q", version=len(held))
