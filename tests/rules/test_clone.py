"""C-1 to C-10 and C-14: a clone is whole or refused, and leaves no pin behind."""

import shutil
import uuid

import lance
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.dying import die_at_every_write
from tests.support.moments import SCHEMA, again, at_time, expect, log_place, make, put, rows, wipe
from weir.errors import CorruptEntry, InvalidInput, MissingEntry
from weir.format import paths
from weir.format.wal_entry import decode_entry, encode_fence
from weir.records.holds import Holds
from weir.records.lineage import read_lineage
from weir.store.open import open_store
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep import clone as clones
from weir.upkeep import parents
from weir.upkeep.gc.collect import collect
from weir.upkeep.health import find_problems
from weir.upkeep.parents import settle_pins

A, B, C = range(10), range(5, 20), range(15, 30)
BEFORE = expect((A, "a"), (B, "b"))


def fill(table):
    """Rows in the base, in SSTables and in the log; returns a durable checkpoint of them."""
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, B, "b")
        made = table.checkpoint(scope="durable", name="k")
        put(writer, C, "late")
    return made


def collect_all(table):
    report = collect(table.core, 0, 120, keep_first_entries=False)
    assert not report.errors, report.errors
    return report


@pytest.fixture(params=["local", "s3 to s3", "s3 to local", "local to s3"])
def two_places(request, tmp_path):
    """A place for the parent and one for the clone, on the same or on different kinds of store."""
    source, _, target = request.param.partition(" to ")
    options: dict[str, str] = {}
    places = []
    for kind, name in ((source, "parent"), (target or source, "copy")):
        if kind == "s3":
            server = request.getfixturevalue("s3")
            options = server.storage_options()
            places.append(f"s3://weir-test/{uuid.uuid4().hex}/{name}")
        else:
            places.append(str(tmp_path / name))
    return places, options


def test_c10_a_clone_is_exact_and_apart_on_any_two_stores(two_places, tmp_path):
    (uri, target), options = two_places
    table = make(uri, 2, wal_uri=str(tmp_path / "w"), storage_options=options)
    made = fill(table)
    copy = table.clone(target, made, wal_uri=str(tmp_path / "w2"))
    assert rows(copy) == BEFORE
    parent = rows(table)
    with copy.writer() as writer:
        put(writer, [1, 100], "clone")
        writer.delete([2])
    copy.compact()
    wanted = BEFORE | expect(([1, 100], "clone"))
    del wanted[2]
    assert rows(again(copy)) == wanted
    assert rows(again(table)) == parent
    assert {r.shard for r in copy.core.record.routing} == {s.id for s in table.shards()}


def test_c1_pins_are_there_before_anything_can_be_read(tmp_path):
    table = make(tmp_path / "t")
    made = fill(table)
    seen = []

    def look(step: str) -> None:
        pins = [c for c in table.checkpoints() if c.owner is not None]
        seen.append((step, [c.expires is None for c in pins]))
        if step != "ready":
            with pytest.raises(MissingEntry, match="unfinished clone"):
                weir.open(str(tmp_path / "copy"))

    clones.clone(watched(table.core, ("clone", "checkpoint"), look), str(tmp_path / "copy"), made)
    known = dict(seen)
    assert known["begun"] == []
    assert known["base"] == [False]  # pinned, with a lifetime
    assert known["kept"] == known["recorded"] == known["ready"] == [True]


@pytest.mark.slow
def test_c1_crash_after_every_write_then_collection_past_every_lifetime_then_retry(
    tmp_path, monkeypatch
):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, B, "b")
        made = table.checkpoint(scope="durable")
    real = open_store
    now = [table.core.store.now()]
    count = [0]

    def run(life) -> None:
        count[0] += 1
        monkeypatch.setattr(clones, "open_store", lambda *a, **k: life.store(real(*a, **k)))
        life.table(again(table)).clone(str(tmp_path / f"copy{count[0]}"), made)

    def check(n: int, finished: bool) -> None:
        monkeypatch.setattr(clones, "open_store", real)
        place = str(tmp_path / f"copy{count[0]}")
        if not finished and n % 2:
            now[0] += 200_000  # every lifetime has passed, and nothing is too young
            collect_all(at_time(again(table), now))
        copy = again(table).clone(place, made)
        assert rows(copy) == BEFORE, n
        # Nothing of a failed attempt is left.
        assert [c.owner for c in table.checkpoints() if c.owner] == [place]
        shutil.rmtree(place)
        table.release_clone(place)  # C-15: an empty place alone proves nothing
        now[0] += 200_000
        collect_all(at_time(again(table), now))
        assert [c.id for c in table.checkpoints()] == [made.id], n

    assert die_at_every_write(run, check) > 10


def test_c2_a_half_made_clone_is_closed_to_everyone_and_finished_by_a_retry(tmp_path):
    """Observed: the WAL copy fails; a writer opens the clone anyway, and rows are gone for good."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    made = table.checkpoint(scope="durable")
    shutil.move(tmp_path / "w", tmp_path / "away")
    target = str(tmp_path / "copy")
    with pytest.raises(MissingEntry):
        again(table).clone(target, made)
    for open_it in (
        lambda: weir.open(target),
        lambda: weir.open(target).shards()[0].writer(),
        lambda: weir.open(target).compact(),
        lambda: weir.open(target).gc(),
    ):
        with pytest.raises(MissingEntry, match="unfinished clone") as refused:
            open_it()
        assert refused.value.kind == "data"
    shutil.move(tmp_path / "away", tmp_path / "w")
    copy = again(table).clone(target, made)
    assert rows(copy) == expect((A, "a"))


def test_c3_ten_failed_clones_leave_no_immortal_pin(tmp_path):
    """Observed: every failed target left a checkpoint that never expires."""
    table = make(tmp_path / "t", 1)
    made = fill(table)
    for n, step in enumerate(["begun", "base", "kept", "recorded", "checked"] * 2):
        core = watched(table.core, ("clone", "checkpoint"), dies_at(step))
        with pytest.raises(Died):
            clones.clone(core, str(tmp_path / f"copy{n}"), made)
    assert table.gc().skipped == []  # a retry may come within a day
    later = at_time(again(table), [table.core.store.now() + 90_000])
    report = collect_all(later)
    left = {c.owner for c in table.checkpoints() if c.owner}
    assert len(left) == 4, "those whose pins were permanent"
    assert all(any(repr(owner) in note for note in report.skipped) for owner in left)
    found = [finding.detail for finding in find_problems(later.core) if finding.name == "clones"]
    assert all(any(repr(owner) in detail for detail in found) for owner in left)
    for owner in left:
        table.release_clone(owner)
    assert not any("clone" in note for note in collect_all(later).skipped)
    assert [c.id for c in table.checkpoints()] == [made.id]
    assert list(table.core.lake.protected_versions()) == [made.base_tag]


def test_c3_discard_removes_pins_first_and_objects_second(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)
    target = str(tmp_path / "copy")

    with pytest.raises(Died):
        clones.clone(watched(table.core, ("clone", "checkpoint"), dies_at("kept")), target, made)
    table.discard_clone(target)
    parents.discard(target)
    assert [c.id for c in table.checkpoints()] == [made.id]
    assert list(open_store(target).list("")) == []
    copy = table.clone(target, made)
    with pytest.raises(InvalidInput, match="complete table"):
        parents.discard(target)
    assert rows(copy) == BEFORE


def test_c4_a_retry_means_the_same_clone(tmp_path):
    table, other = make(tmp_path / "t", 1), make(tmp_path / "o", 1)
    first, foreign = fill(table), fill(other)
    second = table.checkpoint(scope="durable")
    target = str(tmp_path / "copy")
    copy = table.clone(target, first)
    before = {m.path: m.last_modified for m in copy.core.store.list("")}
    assert rows(table.clone(target, first)) == BEFORE  # the same: nothing is written
    assert rows(table.clone(target)) == BEFORE  # by default the checkpoint it was begun with
    assert {m.path: m.last_modified for m in copy.core.store.list("")} == before
    for parent, checkpoint in ((table, second), (other, foreign), (other, first)):
        with pytest.raises((InvalidInput, weir.CheckpointNotFound)):
            parent.clone(target, checkpoint)
    with pytest.raises(InvalidInput, match="already"):
        table.clone(str(tmp_path / "o"), first)
    with pytest.raises(InvalidInput):
        table.clone(table.uri, first)


def test_c4_the_retry_of_a_ready_clone_checks_its_pins(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)
    table.clone(str(tmp_path / "copy"), made)
    (pin,) = [c for c in table.checkpoints() if c.owner]
    table.delete_checkpoint(pin)
    with pytest.raises(weir.CheckpointNotFound, match="pin"):
        table.clone(str(tmp_path / "copy"), made)


def test_c5_a_clone_of_a_clone_of_a_clone_pins_the_first_by_itself(tmp_path):
    a = make(tmp_path / "a", 1)
    first = fill(a)
    b = a.clone(str(tmp_path / "b"), first)
    c = b.clone(str(tmp_path / "c"))
    a.delete_checkpoint(first)  # the checkpoint that the user named is gone
    now = [a.core.store.now() + 200_000]
    collect_all(at_time(again(a), now))
    d = c.clone(str(tmp_path / "d"))
    assert rows(d) == BEFORE
    owners = {c.owner.rpartition("/")[2] for c in a.checkpoints() if c.owner}
    assert owners == {"b", "c", "d"}
    # Without the pins of the clones in between, those of D alone keep A's files.
    for name in ("b", "c"):
        for pin in [p for p in a.checkpoints() if p.owner == str(tmp_path / name)]:
            a.delete_checkpoint(pin)
    with a.writer() as writer:
        put(writer, range(100), "other")
        writer.flush()
    a.compact()
    lance.dataset(a.uri).optimize.compact_files()
    now[0] += 200_000
    collect_all(at_time(again(a), now))
    assert rows(again(d)) == BEFORE


def test_c7_the_epoch_carries_over_and_later_entries_are_refused(tmp_path):
    table = make(tmp_path / "t", 1)
    for _ in range(3):
        table.shards()[0].writer().close()
    made = fill(table)
    copy = table.clone(str(tmp_path / "copy"), made)
    assert copy.shards()[0].manifest().writer_epoch >= made.shards[0].epoch
    with copy.shards()[0].writer() as writer:
        assert writer.epoch > made.shards[0].epoch
        assert writer.stats().replayed_rows == len(B)


def test_c7_a_position_used_again_after_the_checkpoint_is_refused(tmp_path):
    """Observed (F-2): the log was wiped, its positions were reused, and a clone served them."""
    table = make(tmp_path / "t", 1)
    made = fill(table)
    pin = made.shards[0]
    path = paths.wal_path(pin.shard, pin.wal_through)
    table.core.store.delete([path])
    entry = encode_fence(pin.epoch + 1, entry_id="later")
    table.core.store.put_if_absent(path, entry)
    with pytest.raises(CorruptEntry, match="checkpoint"):
        table.clone(str(tmp_path / "copy"), made)


def test_f2_a_checkpoints_positions_are_never_given_out_again(tmp_path):
    """Observed: R=1, L=3, the WAL store is wiped, and the fence took position 2."""
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0]
    writer = shard.writer()
    put(writer, A, "a")
    put(writer, B, "b")
    made = again(table).checkpoint(scope="durable")
    del writer
    through = made.shards[0].wal_through
    table.core.store.delete([m.path for m in table.core.store.list(paths.wal_dir(shard.id))])
    with pytest.raises(MissingEntry):
        again(table).shards()[0].writer()  # the rows are lost, and the open reports it
    used = [
        paths.parse_wal_name(m.path.rpartition("/")[2]) for m in table.core.store.list("_mem_wal")
    ]
    assert min(p for p in used if p) > through


def test_c8_a_hole_is_an_error_and_the_clone_stays_closed(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        for n in range(4):
            put(writer, [n], "x")
        made = table.checkpoint(scope="durable")
    pin = made.shards[0]
    table.core.store.delete([paths.wal_path(pin.shard, pin.wal_through - 1)])
    with pytest.raises(MissingEntry, match="of the checkpoint"):
        table.clone(str(tmp_path / "copy"), made)
    with pytest.raises(MissingEntry, match="of the checkpoint"):
        table.clone(str(tmp_path / "copy"), made, accept_loss=True)
    with pytest.raises(MissingEntry, match="unfinished clone"):
        weir.open(str(tmp_path / "copy"))


def gap_of(table, through_rows: int, scope: str):
    """A checkpoint as an older writer may have left it: a gap with two fences in front of rows."""
    shard = table.shards()[0]
    for _ in range(2):
        from weir.log.fence import claim_shard

        claim_shard(table.core.log(shard.id).current_site())
    writer = shard.writer()
    for n in range(through_rows):
        put(writer, [n], "x")
    made = table.checkpoint(scope="durable")
    return rewrite(table, made, scope=scope)


def rewrite(table, made, **changes):
    """The same checkpoint with another scope in its record, as an earlier release wrote it."""
    changed = replace(made, **changes)
    path = paths.chain_path(paths.checkpoint_chain(made.id), 1)
    table.core.store.delete([path])
    Holds(table.core.store).announce(changed, pending_until=0.0)
    return Holds(table.core.store).load(made.id)


def drop_entries(table, pin, count):
    first = pin.replay_after + 1
    gone = [paths.wal_path(pin.shard, p) for p in range(first, first + count)]
    table.core.store.delete(gone)


def test_c9a_scope_all_with_a_gap_of_fences_and_the_store_gone(tmp_path):
    table = make(tmp_path / "t", 1)
    made = gap_of(table, 0, "all")
    pin = made.shards[0]
    assert pin.wal_through - pin.replay_after == 3
    drop_entries(table, pin, 3)
    copy = table.clone(str(tmp_path / "copy"), made)
    found = copy.shards()[0].manifest()
    assert found.replay_after == found.last_seen == pin.wal_through
    assert rows(copy) == {}
    assert read_lineage(copy.core.store).replay_after == {pin.shard: pin.wal_through}
    with copy.shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > pin.wal_through


def test_c9b_scope_all_with_the_prefix_gone_copies_the_tail(tmp_path):
    table = make(tmp_path / "t", 1)
    made = gap_of(table, 2, "all")
    pin = made.shards[0]
    drop_entries(table, pin, 2)
    copy = table.clone(str(tmp_path / "copy"), made)
    assert copy.shards()[0].manifest().replay_after == pin.replay_after + 2
    assert rows(copy) == expect((range(2), "x"))


def test_c9c_scope_durable_with_the_store_gone_is_lost_data(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    made = fill(table)
    wipe(tmp_path / "w")
    with pytest.raises(MissingEntry, match="accept_loss") as lost:
        again(table).clone(str(tmp_path / "copy"), made)
    assert lost.value.kind == "data"


@pytest.mark.parametrize("gone", [1, 3, 4, 5])
def test_c9c_scope_durable_with_entries_gone_from_a_store_that_is_there(tmp_path, gone):
    """Two fences, the writer's own and two rows: a missing entry in front is loss, even a fence."""
    table = make(tmp_path / "t", 1)
    made = gap_of(table, 2, "durable")
    pin = made.shards[0]
    assert pin.wal_through - pin.replay_after == 5
    drop_entries(table, pin, gone)
    with pytest.raises(MissingEntry, match="accept_loss") as lost:
        table.clone(str(tmp_path / "copy"), made)
    assert lost.value.kind == "data"
    with pytest.raises(MissingEntry, match="unfinished clone"):
        weir.open(str(tmp_path / "copy"))
    copy = table.clone(str(tmp_path / "copy"), made, accept_loss=True)
    assert rows(copy) == expect((range(max(gone - 3, 0), 2), "x"))
    lineage = read_lineage(copy.core.store)
    assert lineage.accepted_loss
    assert lineage.replay_after == {pin.shard: pin.replay_after + gone}


def test_c9d_the_same_with_the_flag_succeeds_and_is_recorded(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    made = fill(table)
    wipe(tmp_path / "w")
    copy = again(table).clone(str(tmp_path / "copy"), made, accept_loss=True)
    assert rows(copy) == expect((A, "a"))
    lineage = read_lineage(copy.core.store)
    assert lineage.accepted_loss
    assert lineage.replay_after == {made.shards[0].shard: made.shards[0].wal_through}


def test_c10_a_collision_with_other_bytes_is_refused(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)
    pin = made.shards[0]
    path = paths.wal_path(pin.shard, pin.wal_through)
    target = open_store(str(tmp_path / "copy"))
    target.put_if_absent(path, encode_fence(1, entry_id="somebody else's"))
    with pytest.raises(CorruptEntry, match="exists with other content"):
        table.clone(str(tmp_path / "copy"), made)
    target.delete([path])
    assert rows(table.clone(str(tmp_path / "copy"), made)) == BEFORE
    assert decode_entry(target.get(path).data, position=pin.wal_through, path=path).batches


def test_c13_a_clone_numbers_generations_from_where_the_parent_was(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)
    copy = table.clone(str(tmp_path / "copy"), made)
    assert copy.shards()[0].manifest().current_generation == made.shards[0].current_generation
    assert copy.core.lake.open_base().compacted == {made.shards[0].shard: 1}
    with copy.writer() as writer:
        put(writer, [1], "new")
        writer.flush()
    copy.compact()
    assert rows(copy) == BEFORE | {1: "new"}


def test_c14_detach_lets_go_when_nothing_is_shared_and_not_before(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)
    copy = table.clone(str(tmp_path / "copy"), made)
    assert settle_pins(copy.core) == []  # the base is still the parent's
    held = copy.checkpoint("all")
    lance.dataset(copy.uri).delete("true")
    with copy.writer() as writer:
        put(writer, [1], "own")
    copy.compact()
    assert settle_pins(again(copy).core) == []  # a checkpoint of the clone holds the old version
    copy.delete_checkpoint(held)
    lance.dataset(copy.uri).cleanup_old_versions(
        older_than=__import__("datetime").timedelta(0), delete_unverified=True
    )
    assert settle_pins(again(copy).core) == [table.uri]
    assert read_lineage(copy.core.store).pins == ()
    assert not [c for c in table.checkpoints() if c.owner]
    assert rows(again(copy))[1] == "own"


def test_c14_collection_detaches_a_clone_that_shares_nothing_any_more(tmp_path):
    table = make(tmp_path / "t", 1)
    copy = table.clone(str(tmp_path / "copy"), fill(table))

    def collected():
        report = collect(again(copy).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
        return read_lineage(copy.core.store).pins

    assert len(collected()) == 1  # the base is still the parent's
    lance.dataset(copy.uri).delete("true")
    with copy.writer() as writer:
        put(writer, [1], "own")
    copy.compact()
    shutil.move(tmp_path / "t", tmp_path / "hidden")
    assert len(collected()) == 1  # the parent is out of reach
    shutil.move(tmp_path / "hidden", tmp_path / "t")
    assert collected() == ()
    assert not [c for c in table.checkpoints() if c.owner]
    assert rows(again(copy))[1] == "own"


def test_c14_a_finished_clone_holds_the_parents_base_and_nothing_else(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
        made = table.checkpoint(scope="durable")
    copy = table.clone(str(tmp_path / "copy"), made)
    pin = made.shards[0]
    assert pin.sstables
    assert not pin.closed
    table.delete_checkpoint(made)
    with table.writer() as writer:
        put(writer, A, "later")
        writer.flush()
    table.compact()
    lance.dataset(table.uri).optimize.compact_files()
    for _ in range(2):
        report = collect(again(table).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
    [held] = table.checkpoints()
    assert held.base_only
    gone = [paths.manifest_path(pin.shard, pin.manifest_version)]
    gone += [paths.wal_path(pin.shard, p) for p in range(pin.replay_after + 1, pin.wal_through + 1)]
    assert [path for path in gone if table.core.store.head(path)] == []
    for sstable in pin.sstables:
        assert not list(table.core.store.list(paths.sstable_dir(pin.shard, sstable.path)))
    assert rows(again(copy)) == BEFORE
    # It can no longer be read, cloned or restored, and still holds the base when refreshed.
    for use in (
        lambda: rows(table, checkpoint=held),
        lambda: rows(table, checkpoint=held.id),
        lambda: table.clone(str(tmp_path / "other"), held),
        lambda: table.restore(held.id),
    ):
        with pytest.raises(InvalidInput, match="only base files"):
            use()
    assert table.refresh_checkpoint(held.id).base_only
    # A clone of the clone holds the first table's base by itself (C-5).
    second = copy.clone(str(tmp_path / "second"))
    assert rows(second) == BEFORE
    assert len(table.checkpoints()) == 2
    # A retry of a finished clone changes nothing (C-4).
    assert rows(table.clone(str(tmp_path / "copy"))) == BEFORE


def test_c14_a_clone_that_is_not_finished_holds_everything(tmp_path):
    table = make(tmp_path / "t", 1)
    made = fill(table)

    core = watched(table.core, ("clone", "checkpoint"), dies_at("copied"))
    with pytest.raises(Died):
        clones.clone(core, str(tmp_path / "copy"), made)
    table.delete_checkpoint(made)
    for _ in range(2):
        collect(again(table).core, 0, 120, keep_first_entries=False)
    assert [c.base_only for c in table.checkpoints()] == [False]
    assert rows(table.clone(str(tmp_path / "copy"))) == BEFORE


def test_c14_a_crash_between_pin_and_note_converges(tmp_path, monkeypatch):
    from weir.upkeep import parents

    table = make(tmp_path / "t", 1)
    made = fill(table)
    copy = table.clone(str(tmp_path / "copy"), made, deep=False)
    monkeypatch.setattr(parents, "borrowed_places", lambda _store: set())

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(parents, "append_lineage", die)
        with pytest.raises(KeyboardInterrupt):
            settle_pins(copy.core)
    assert not [c for c in table.checkpoints() if c.owner]
    assert len(read_lineage(copy.core.store).pins) == 1  # it names a pin that is gone
    assert settle_pins(again(copy).core) == [table.uri]
    assert read_lineage(copy.core.store).pins == ()


def test_a_deep_clone_shares_nothing_and_holds_nothing(tmp_path):
    table = make(tmp_path / "t")
    made = fill(table)
    copy = table.clone(str(tmp_path / "copy"), made, deep=True)
    assert [c.id for c in table.checkpoints()] == [made.id]
    shutil.rmtree(tmp_path / "t")
    assert rows(again(copy)) == BEFORE


def test_the_whole_story_flush_wipe_clone_write(tmp_path):
    """Flush all, wipe the WAL disk, clone, open the clone with a new WAL store, write to it."""
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "nvme"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
        made = table.checkpoint(scope="all")
    wipe(tmp_path / "nvme")
    copy = again(table).clone(str(tmp_path / "copy"), made, wal_uri=str(tmp_path / "nvme2"))
    with copy.writer() as writer:
        put(writer, C, "c")
        assert rows(again(copy)) == expect((A, "a"), (B, "b"), (C, "c"))
    assert log_place(copy).uri == str(tmp_path / "nvme2")
    parent = again(table)
    assert rows(parent, checkpoint=made) == BEFORE
    with parent.writer() as writer:  # the gap was closed, so the parent can be written too
        put(writer, [0], "z")
    assert rows(again(table)) == BEFORE | {0: "z"}
    assert rows(again(copy)) == expect((A, "a"), (B, "b"), (C, "c"))


@pytest.mark.slow
def test_cloning_a_big_table_copies_less_than_a_hundredth(tmp_path):
    count = 1_000_000
    noise = np.random.default_rng(1).bytes(32 * count).hex()
    text = pa.array([noise[i * 40 : i * 40 + 40] for i in range(count)])
    data = pa.table({"id": pa.array(range(count), pa.int64()), "v": text})
    lance.write_dataset(data.cast(SCHEMA), str(tmp_path / "t"))
    table = weir.enable(str(tmp_path / "t"), primary_key="id", sharding=weir.Bucket("id", 4))
    with table.writer() as writer:
        put(writer, range(2000), "fresh")
    copy = table.clone(str(tmp_path / "copy"), table.checkpoint("all"))
    size = {n: sum(m.size for m in open_store(str(tmp_path / n)).list("")) for n in ("t", "copy")}
    assert size["copy"] < size["t"] / 100
    assert copy.scan().count() == count
    assert checkpoints.checkpoints(table.core)[1].owner == copy.uri


@pytest.mark.parametrize("scope", ["all", "durable"])
@pytest.mark.parametrize("apart", [False, True], ids=["beside", "apart"])
def test_p3_the_feed_of_a_clone_begins_where_its_log_begins(tmp_path, scope, apart):
    """The entries that its parent flushed are not in its log: that is no hole."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
        made = table.checkpoint(scope=scope)
    wal = str(tmp_path / "wal") if apart else None
    copy = table.clone(str(tmp_path / "copy"), made, wal_uri=wal)
    told = [change.batch.num_rows for change in copy.changes()]
    assert sum(told) == (len(B) if scope == "durable" else 0)
    with copy.writer() as writer:
        put(writer, C, "c")
    fresh = list(again(copy).changes())
    assert sum(change.batch.num_rows for change in fresh) == sum(told) + len(C)
    assert rows(again(copy)) == expect((A, "a"), (B, "b"), (C, "c"))


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_c4_a_clone_of_another_kind_is_refused(tmp_path, deep, finished):
    """A copy that shares files is no backup; who asks for one must not be told that it is done."""
    table = make(tmp_path / "t")
    made = fill(table)
    place = str(tmp_path / "copy")

    if finished:
        table.clone(place, made, deep=deep)
    else:
        with pytest.raises(Died):
            clones.clone(watched(table.core, "clone", dies_at("base")), place, made, deep=deep)
    with pytest.raises(InvalidInput, match="clone to another place"):
        again(table).clone(place, made, deep=not deep)
    assert rows(again(table).clone(place, made, deep=deep)) == BEFORE


def test_c4_a_finished_clone_with_its_log_elsewhere_is_told(tmp_path):
    table = make(tmp_path / "t")
    made = fill(table)
    place = str(tmp_path / "copy")
    table.clone(place, made)
    with pytest.raises(InvalidInput, match="move_wal"):
        table.clone(place, made, wal_uri=str(tmp_path / "wal"))


def test_c14_a_deep_clone_that_died_in_its_last_step_is_finished(tmp_path, monkeypatch):
    """The pin in the parent is gone, and the record that says so was not written."""
    table = make(tmp_path / "t")
    made = fill(table)
    place = str(tmp_path / "copy")

    def die(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr("weir.upkeep.parents.append_lineage", die)
        with pytest.raises(KeyboardInterrupt):
            table.clone(place, made, deep=True)
    assert not [c for c in table.checkpoints() if c.owner]
    copy = again(table).clone(place, made, deep=True)
    assert read_lineage(copy.core.store).pins == ()
    shutil.rmtree(tmp_path / "t")
    assert rows(again(copy)) == BEFORE


@pytest.mark.parametrize("ref", ["none", "id", "text of the id", "checkpoint", "name"])
def test_c4_a_finished_deep_clone_is_found_when_its_checkpoint_is_gone(tmp_path, ref):
    """It holds no pin, and what it was made from is in its records."""
    table = make(tmp_path / "t")
    made = None if ref == "none" else fill(table)  # None: a temporary one, deleted at the end
    place = str(tmp_path / "copy")
    copy = table.clone(place, made, deep=True)
    if made is not None:
        table.delete_checkpoint(made)
    assert not table.checkpoints()
    before = {m.path: m.last_modified for m in copy.core.store.list("")}
    refs = {"none": None}
    if made is not None:
        refs = {"id": made.id, "text of the id": str(made.id), "name": made.name}
    asked = refs.get(ref, made)
    assert rows(again(table).clone(place, asked, deep=True)) == rows(copy)
    assert {m.path: m.last_modified for m in copy.core.store.list("")} == before
    with pytest.raises(InvalidInput, match="clone to another place"):
        again(table).clone(place, uuid.uuid4(), deep=True)
    with pytest.raises(InvalidInput, match="clone to another place"):
        make(tmp_path / "other").clone(place, asked, deep=True)


@pytest.mark.parametrize("named", [True, False])
def test_c1_a_deep_clone_of_a_table_that_shares_files_is_refused_in_time(tmp_path, named):
    """Before anything is written: the table could not be dropped, and the place was taken."""
    table = make(tmp_path / "t")
    copy = table.clone(str(tmp_path / "copy"), fill(table))
    held = copy.checkpoint("all")
    with pytest.raises(InvalidInput, match="shares files"):
        copy.clone(str(tmp_path / "second"), held if named else None, deep=True)
    assert [c.id for c in copy.checkpoints()] == [held.id]
    assert not list((tmp_path / "second").glob("**/*"))
    assert rows(copy.clone(str(tmp_path / "second"), held)) == BEFORE


def test_x4_compacting_a_clone_of_an_indexed_table_keeps_its_indexes(tmp_path):
    """Lance 14 gives an index that a rewrite moved the parent's place."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())]
    )
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    for part in range(4):
        with table.writer() as writer:
            writer.put([{"id": 10 * part + n, "v": n, "s": f"word{n}"} for n in range(10)])
        table.compact(rewrite=False)
    base = lance.dataset(table.uri)
    base.create_scalar_index("v", "BTREE")
    base.create_scalar_index("s", "INVERTED")
    copy = table.clone(str(tmp_path / "copy"))
    with copy.writer() as writer:
        writer.put([{"id": 100, "v": 3, "s": "word3"}])
    notes = copy.compact(rewrite=True).notes
    assert any("s_idx" in note and "v_idx" in note and "replace=True" in note for note in notes)
    assert copy.count("v = 3") == 5
    assert copy.search("s", "word3", k=10).num_rows == 5
    own = lance.dataset(copy.uri)
    own.create_scalar_index("v", "BTREE", replace=True)
    own.create_scalar_index("s", "INVERTED", replace=True)
    assert copy.compact(rewrite=True).notes == []
    with copy.writer() as writer:
        writer.put([{"id": 101, "v": 3, "s": "word3"}])
    copy.compact(rewrite=True)
    assert copy.count("v = 3") == 6
    assert len(lance.dataset(copy.uri).get_fragments()) < 6


def test_c10_a_deep_clone_copies_the_files_of_its_version_only(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    for part in range(4):
        with table.writer() as writer:
            writer.put([{"id": n, "s": f"word{part}"} for n in range(100 + part)])
        table.compact(rewrite=part == 2)
    lance.dataset(table.uri).create_scalar_index("s", "INVERTED")
    lance.dataset(table.uri).create_scalar_index("s", "INVERTED", replace=True)
    with table.writer() as writer:
        writer.put([{"id": 1, "s": "last"}])
    table.compact(rewrite=False)
    copy = table.clone(str(tmp_path / "copy"), deep=True)
    base = lance.dataset(copy.uri)
    named = {file.path for f in base.get_fragments() for file in f.metadata.files}
    assert {path.name for path in (tmp_path / "copy" / "data").iterdir()} == named
    assert len(list((tmp_path / "t" / "data").iterdir())) > len(named)
    shutil.rmtree(tmp_path / "t")
    assert copy.count() == 103
    assert copy.count("s = 'word3'") == 102
    assert copy.search("s", "last", k=5).num_rows == 1
    assert lance.dataset(copy.uri).to_table().num_rows == 103


@pytest.mark.timeout(60)
def test_g13_a_forged_mark_of_a_used_position_lets_no_clone_look_for_ever(tmp_path):
    """Whoever writes there may say that 2**62 entries were used: no more are asked for than are
    listed."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [1], "x")
    (shard,) = table.core.shard_ids()
    table.core.log(shard).manifests.floors.raise_to("used", 1 << 62)
    held = table.checkpoint()
    with pytest.raises(MissingEntry, match="acknowledged rows are lost"):
        table.clone(str(tmp_path / "copy"), held)
    copy = table.clone(str(tmp_path / "copy"), held, accept_loss=True)
    assert rows(copy) == expect(([1], "x"))
