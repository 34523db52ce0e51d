"""C-15: an unreachable clone keeps its pins; only its own record, or an operator, releases
them."""

import shutil

import pytest

import weir
from simulator.steps import watched
from tests.support.moments import again, at_time, expect, make, put, rows
from weir.errors import InvalidInput
from weir.format import paths
from weir.upkeep import clone as clones
from weir.upkeep import parents
from weir.upkeep.gc.collect import collect, target_of

A = range(10)
LATER = 10 * 86_400.0


@pytest.fixture
def parent(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    table.compact()
    return table


def collect_later(table):
    """Collect without slack, after every grace period."""
    later = at_time(again(table), [table.core.store.now() + LATER])
    report = collect(target_of(later.core), 0, 120, keep_first_entries=False)
    assert not report.errors, report.errors
    return report


def rewrite(table):
    """Replace all rows, so that the table itself no longer needs the old base files."""
    with again(table).writer() as writer:
        put(writer, A, "b")
    again(table).compact()


def held(table):
    return [c for c in again(table).checkpoints() if c.owner]


class Stop(Exception):
    """The clone's process dies."""


def begin(table, place):
    """Begin a clone that dies with permanent pins, before it says that it is ready."""

    def stop(step):
        if step == "kept":
            raise Stop

    with pytest.raises(Stop):
        clones.clone(watched(table.core, ("clone", "checkpoint"), stop), str(place))


@pytest.mark.parametrize("there", ["nothing", "a table", "a clone", "an unfinished clone"])
def test_c15_a_clone_on_a_disk_that_is_not_mounted_keeps_its_files(parent, tmp_path, there):
    place, away = tmp_path / "mnt" / "copy", tmp_path / "away"
    parent.clone(str(place))
    shutil.move(place, away)  # the disk is taken out
    if there == "a table":
        make(place, 1)  # and another one put in
    elif there == "a clone":
        make(tmp_path / "other", 1).clone(str(place))
    elif there == "an unfinished clone":

        class Stop(Exception):
            pass

        def stop(step):
            if step == "kept":
                raise Stop

        with pytest.raises(Stop):
            clones.clone(
                watched(make(tmp_path / "other", 1).core, ("clone", "checkpoint"), stop), str(place)
            )
    rewrite(parent)
    report = collect_later(parent)
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(away, place)
    assert rows(weir.open(str(place))) == expect((A, "a"))
    assert any(str(place) in note for note in report.skipped), "somebody must hear of it"
    assert not any(str(place) in note for note in collect_later(parent).skipped)


def test_c15_an_operators_word_lets_go_of_a_clone_that_was_deleted(parent, tmp_path):
    place = tmp_path / "copy"
    parent.clone(str(place))
    with pytest.raises(InvalidInput, match="still exists"):
        parent.release_clone(str(place))
    shutil.rmtree(place)
    with pytest.raises(InvalidInput, match="no clone at"):
        parent.release_clone(str(tmp_path / "misspelt"))
    (pin,) = held(parent)
    assert parent.release_clone(str(place)) == [pin.id]
    assert held(parent) == []
    rewrite(parent)
    collect_later(parent)
    assert list(parent.core.lake.protected_versions()) == []


def test_c15_a_clone_that_let_go_itself_is_believed(parent, tmp_path):
    """Its own record once named the pin and no longer does: a crash left the pin behind."""
    place = tmp_path / "copy"

    begin(parent, place)
    (pin,) = held(parent)
    assert clones.reclaimable_pins(parent.core) == [], "a retry may come"
    later = at_time(again(parent), [parent.core.store.now() + LATER])
    assert clones.give_up(later.core, pin.id)  # a collector records it in the clone, and dies
    assert clones.reclaimable_pins(parent.core) == [pin.id]
    collect_later(parent)
    assert held(parent) == []


def test_c15_a_clone_whose_disk_goes_between_two_looks_keeps_its_pin(parent, tmp_path, monkeypatch):
    """Its disk was unmounted after collection had read that it is unfinished, and before it was
    told: it may still become ready. Seed 17004830."""
    place = tmp_path / "mnt" / "copy"

    begin(parent, place)
    (pin,) = held(parent)
    real = parents.lineage_history

    def unmount(store):
        said = real(store)
        if place.exists():
            shutil.move(place, tmp_path / "away")
        return said

    monkeypatch.setattr(parents, "lineage_history", unmount)
    later = at_time(again(parent), [parent.core.store.now() + LATER])
    assert not clones.give_up(later.core, pin.id)
    assert [p.id for p in held(parent)] == [pin.id]


@pytest.mark.parametrize("there", ["nothing", "a table", "a clone", "a clone begun"])
def test_c15_a_clone_is_given_up_where_it_is_and_nowhere_else(parent, tmp_path, monkeypatch, there):
    """Its disk was exchanged after collection had read its records: nothing is recorded in the
    clone, so its pin stays, and the data now in its place is unchanged."""
    place, away = tmp_path / "mnt" / "copy", tmp_path / "away"
    other = make(tmp_path / "other", 1)

    def record(number):
        return place / paths.chain_path(paths.clone_chain(), number)

    begin(parent, place)
    (pin,) = held(parent)
    real = parents.append_lineage

    def exchange(*args):
        shutil.move(place, away)
        if there == "a table":
            make(place, 1)
        elif there == "a clone":
            other.clone(str(place))
            record(2).rename(record(1))  # as if its chain were as long as the given-up clone's
        elif there == "a clone begun":
            begin(other, place)
        return real(*args)

    monkeypatch.setattr(parents, "append_lineage", exchange)
    later = at_time(again(parent), [parent.core.store.now() + LATER])
    assert not clones.give_up(later.core, pin.id)
    assert record(2).exists(), "it was written, to the other disk"
    monkeypatch.undo()
    if there in ("nothing", "a clone begun"):
        other.clone(str(place))
    assert rows(weir.open(str(place))) == {}
    shutil.move(place, tmp_path / "elsewhere")
    shutil.move(away, place)
    assert rows(parent.clone(str(place))) == expect((A, "a"))
    assert [c.id for c in held(parent)] == [pin.id]


def test_c3_a_clone_that_never_became_ready_is_let_go_by_its_lifetime(parent, tmp_path):
    """At whichever step it failed before its pin became permanent, and reachable or not."""

    class Stop(Exception):
        pass

    made = parent.checkpoint(scope="durable")
    for number, step in enumerate(["begun", "announced", "confirmed", "base"]):

        def stop(at, step=step):
            if at == step:
                raise Stop

        place = tmp_path / f"copy{number}"
        with pytest.raises(Stop):
            clones.clone(watched(parent.core, ("clone", "checkpoint"), stop), str(place), made)
        shutil.rmtree(place)
    collect_later(parent)
    collect_later(parent)
    assert [pin for pin in held(parent) if pin.owner] == []
