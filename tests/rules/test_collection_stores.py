"""S-8: a deletion names the folder of one table's logs, or nothing goes.

F-18, G-3: ages of entries are measured by the clock of the store that holds them.
"""

import pytest

import weir
from simulator.steps import watched
from tests.support.moments import again, expect, make, put, rows, wipe
from weir.env import Env
from weir.format import paths
from weir.store.open import open_store
from weir.testing.faulty import FaultyStores
from weir.upkeep.gc.collect import collect


def positions(table, place):
    """Positions of the first shard's log at `place`, in any folder the table uses there."""
    wal = table.core.wal_stores.at(None if place is None else place)
    return sorted(
        paths.parse_wal_name(meta.path.rpartition("/")[2])
        for meta in wal.list("")
        if f"{table.shards()[0].id}/wal/" in meta.path
    )


def many(table, count=10, **options):
    """A writer's life: `count` entries, then a flush and a clean close."""
    with again(table, **options).writer() as writer:
        for n in range(count):
            put(writer, [n], "x")
        writer.flush()


def test_s8_a_collection_of_a_moved_log_deletes_where_it_is_and_was(tmp_path):
    x, y = str(tmp_path / "x"), str(tmp_path / "y")
    table = make(tmp_path / "a", 1, wal_uri=x)
    many(table)
    many(table, wal_uri=y)
    # First entries of an epoch stay for two minutes by default; they are few.
    was, now = positions(table, x), positions(table, y)
    report = collect(again(table).core, 0, 120)
    assert report.ok, report.errors
    gone = len(was) - len(positions(table, x)) + len(now) - len(positions(table, y))
    assert gone > 15
    assert report.kind("wal").deleted >= gone
    assert rows(again(table)) == expect((range(10), "x"))


def test_s8_a_store_that_was_given_away_during_a_collection_is_left_alone(tmp_path):
    x = str(tmp_path / "x")
    table = make(tmp_path / "a", 1, wal_uri=x)
    many(table)
    given = []

    def give_away(step):
        if step == "pinned":
            wipe(x)
            other = make(tmp_path / "b", 1, wal_uri=x)
            with other.writer() as writer:
                for n in range(30):
                    put(writer, [n], "b")
            given.append((other, positions(other, x)))

    report = collect(watched(again(table).core, "gc", give_away), 0, 120, kinds=["wal"])
    other, before = given[0]
    assert report.kind("wal").deleted == 0
    assert report.errors
    assert positions(other, x) == before


# -- clocks ----------------------------------------------------------------------------------------


class Skewed:
    """A store whose clock is ahead of all others, in its answers and in its objects' times."""

    def __init__(self, inner, ahead):
        self._inner = inner
        self._ahead = ahead

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def now(self):
        return self._inner.now() + self._ahead

    def list(self, prefix):
        import dataclasses

        for meta in self._inner.list(prefix):
            yield dataclasses.replace(meta, last_modified=meta.last_modified + self._ahead)


class SkewedBelow:
    """Places of an environment: what is below `root` has a clock of its own."""

    def __init__(self, root, ahead):
        self._root = root
        self._ahead = ahead

    def store(self, uri):
        found = open_store(uri)
        return Skewed(found, self._ahead) if uri.startswith(self._root) else found

    def lake(self, uri):
        return None


@pytest.mark.parametrize("ahead", [-8 * 86400, 8 * 86400])
def test_g3_ages_are_measured_by_the_clock_of_the_store_that_holds_the_entries(tmp_path, ahead):
    """The table's clock is eight days off the WAL store's, which makes no fence look old."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    stalled = table.shards()[0].writer()
    put(stalled, [0], "a")
    for _ in range(2):
        many(table)
    skewed = again(table, env=Env(places=SkewedBelow(str(tmp_path / "w"), ahead)))
    report = collect(skewed.core, 0, "7d")
    assert report.ok, report.errors
    assert report.kind("wal").kept["first entry of an epoch"] > 0
    assert report.kind("wal").deleted > 10
    with pytest.raises(weir.FencedError):
        put(stalled, [1], "falsely acknowledged")
    assert rows(again(table)) == expect((range(10), "x"))


def test_g3_a_former_place_has_its_own_clock(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    many(table)
    many(table, wal_uri=str(tmp_path / "w2"))
    skewed = again(table, env=Env(places=SkewedBelow(str(tmp_path / "w1"), -8 * 86400)))
    before = positions(table, str(tmp_path / "w1"))
    report = collect(skewed.core, 0, "7d")
    assert report.ok, report.errors
    after = positions(table, str(tmp_path / "w1"))
    assert after, "the first entry of each epoch stays there, too"
    assert len(after) < len(before)


def test_s5_a_wal_store_that_cannot_be_listed_keeps_its_log_and_the_report_says_so(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    for _ in range(2):
        many(table)
    faulty = FaultyStores()
    core = again(table, env=faulty.env).core
    refusing = faulty.at(str(tmp_path / "w"))
    refusing.on("list").refuse(times=None)
    report = collect(core, 0, 120, keep_first_entries=False)
    assert report.ok, report.errors
    assert any("could not be listed" in note for note in report.skipped)
    assert report.kind("wal").seen == 0
    assert report.kind("manifests").deleted, "the other kinds were collected"
    refusing.heal()
    assert collect(core, 0, 120, keep_first_entries=False).kind("wal").deleted > 10


def test_s3_what_an_earlier_log_left_beside_the_data_is_collected_too(tmp_path):
    table = make(tmp_path / "t", 1)
    many(table)
    many(table, wal_uri=str(tmp_path / "w"))
    before = positions(table, table.uri)
    collect(again(table).core, 0, "7d")
    left = positions(table, table.uri)
    assert left, "the first entry of epoch 1: its writer may aim there yet"
    assert len(left) < len(before)
    collect(again(table).core, 0, 120, keep_first_entries=False)
    assert positions(table, table.uri) == []
