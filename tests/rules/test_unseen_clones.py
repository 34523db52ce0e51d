"""C-15: an unreachable clone keeps its pins; only its own record, or an operator, releases
them."""

import shutil

import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import again, at_time, expect, make, put, rows
from weir.errors import InvalidInput
from weir.upkeep import clone as clones
from weir.upkeep import parents
from weir.upkeep.gc.collect import collect

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
    report = collect(later.core, 0, 120, keep_first_entries=False)
    assert not report.errors, report.errors
    return report


def rewrite(table):
    """Replace all rows, so that the table itself no longer needs the old base files."""
    with again(table).writer() as writer:
        put(writer, A, "b")
    again(table).compact()


def held(table):
    return [c for c in again(table).checkpoints() if c.owner]


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
        with pytest.raises(Died):
            clones.clone(
                watched(make(tmp_path / "other", 1).core, ("clone", "checkpoint"), dies_at("kept")),
                str(place),
            )
    rewrite(parent)
    report = collect_later(parent)
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(away, place)
    assert rows(weir.open(str(place))) == expect((A, "a"))
    assert not any(str(place) in note for note in report.skipped), "it was finished"


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


def test_c3_a_clone_that_never_became_ready_is_let_go_by_its_lifetime(parent, tmp_path):
    """At whichever step it failed before its pin became permanent, and reachable or not."""
    made = parent.checkpoint(scope="durable")
    for number, step in enumerate(["begun", "announced", "confirmed", "base"]):
        place = tmp_path / f"copy{number}"
        core = watched(parent.core, ("clone", "checkpoint"), dies_at(step))
        with pytest.raises(Died):
            clones.clone(core, str(place), made)
        shutil.rmtree(place)
    collect_later(parent)
    collect_later(parent)
    assert [pin for pin in held(parent) if pin.owner] == []


def test_c15_a_clone_whose_parent_is_gone_can_be_dropped(parent, tmp_path):
    place = str(tmp_path / "copy")
    parent.clone(place)
    shutil.rmtree(tmp_path / "t")
    weir.drop(place)
    assert not weir.exists(place)
    with make(tmp_path / "copy", 1).writer() as writer:
        put(writer, A, "b")
    assert rows(weir.open(place)) == expect((A, "b"))


def test_c15_an_unfinished_clone_whose_parent_is_gone_can_be_discarded(parent, tmp_path):
    place = str(tmp_path / "copy")
    with pytest.raises(Died):
        clones.clone(watched(parent.core, ("clone",), dies_at("base")), place)
    shutil.move(tmp_path / "t", tmp_path / "away")
    parents.discard(place)
    assert not list((tmp_path / "copy").rglob("*.json"))
    shutil.move(tmp_path / "away", tmp_path / "t")  # its pin is there, and can be let go
    (pin,) = held(parent)
    assert parent.release_clone(place) == [pin.id]
