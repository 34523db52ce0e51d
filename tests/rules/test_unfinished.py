"""Work that one verb left unfinished, and the verbs that come after it (`weir.upkeep.unfinished`).

A restore that died is finished by running it again; its way back holds every acknowledged row,
those written between the attempts included (K-11). Until then no verb makes the mixture final.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import again, at_time, expect, make, put, rows
from weir.errors import CommitConflict
from weir.format.manifest import Status
from weir.format.sharding import field_entries
from weir.records.lineage import read_lineage
from weir.records.resharding import append_resharding, read_resharding
from weir.routing.core import first_manifest
from weir.upkeep import restore as restoring
from weir.upkeep.loads import load
from weir.upkeep.reshard import reshard
from weir.upkeep.restore import restore

A, B, C = range(6), range(4, 10), range(8, 14)
LOG_ONLY = weir.WriterConfig(enable_memtable=False)


def interrupted_restore(table: weir.Table, held: Any, step: str, times: int = 1) -> None:
    with pytest.raises(Died):
        restore(watched(again(table).core, "restore", dies_at(step, times)), held)


def filled(tmp_path: Path, config: weir.WriterConfig | None = None) -> tuple[weir.Table, Any]:
    """Rows A at the checkpoint; since then B was compacted, and C waits in SSTables or logs."""
    table = make(tmp_path / "t", 2)
    with table.writer(config) as writer:
        put(writer, A, "a")
    held = table.checkpoint(scope="durable")
    with table.writer(config) as writer:
        put(writer, B, "b")
    table.compact()
    with table.writer(config) as writer:
        put(writer, C, "c")
    return table, held


STEPS = [("begun", 1), ("held", 1), ("announced", 1), ("base", 1), ("shard", 1), ("shard", 2)]


@pytest.mark.parametrize("config", [None, LOG_ONLY], ids=["MemTable", "WAL-only"])
@pytest.mark.parametrize(("step", "times"), STEPS)
def test_k11_the_way_back_of_a_restore_finished_later_holds_every_row(
    tmp_path: Path, step: str, times: int, config: weir.WriterConfig | None
) -> None:
    table, held = filled(tmp_path, config)
    interrupted_restore(table, held, step, times)
    with again(table).writer(config) as writer:
        put(writer, range(20, 30), "between")  # rows of both shards
    with again(table).writer(LOG_ONLY) as writer:
        put(writer, range(25, 35), "later")
    again(table).gc(min_age=0)
    report = again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))
    everything = expect(
        (A, "a"), (B, "b"), (C, "c"), (range(20, 30), "between"), (range(25, 35), "later")
    )
    assert rows(again(table), checkpoint=report.undo) == everything
    again(table).gc(min_age=0)
    again(table).restore(report.undo)
    assert rows(again(table)) == everything
    again(table).compact()
    again(table).gc(min_age=0)
    assert rows(again(table)) == everything


@pytest.mark.parametrize("config", [None, LOG_ONLY], ids=["MemTable", "WAL-only"])
@pytest.mark.parametrize("step", ["begun", "announced", "base"])
def test_k11_rows_acknowledged_while_a_restore_runs_are_in_its_way_back(
    tmp_path: Path, step: str, config: weir.WriterConfig | None
) -> None:
    table, held = filled(tmp_path, config)
    writer = again(table).writer(config)
    put(writer, [20, 21], "before")

    def go_on_writing(reached: str) -> None:
        if reached == step:
            put(writer, range(20, 30), "meanwhile")  # rows of both shards

    report = restore(watched(again(table).core, "restore", go_on_writing), held)
    assert writer.stats()  # a shard of it was written to
    assert rows(again(table)) == expect((A, "a"))
    everything = expect((A, "a"), (B, "b"), (C, "c"), (range(20, 30), "meanwhile"))
    assert rows(again(table), checkpoint=report.undo) == everything
    assert [c.id for c in table.checkpoints() if c.name == restoring.UNDO_NAME] == [report.undo.id]
    lineage = read_lineage(table.core.store)
    assert lineage is not None
    assert lineage.restored is not None
    assert lineage.restored.undo == report.undo.id
    again(table).gc(min_age=0)
    again(table).restore(report.undo)
    assert rows(again(table)) == everything


def test_k11_rows_put_to_a_later_shard_while_a_restore_runs_are_in_its_way_back(
    tmp_path: Path,
) -> None:
    """The first shard is restored already: what is put there then is of the restored table."""
    table, held = filled(tmp_path)
    shards = iter(again(table).core.shard_ids())

    def go_on_writing(reached: str) -> None:
        if reached.startswith("shard") and next(shards, None) == table.core.shard_ids()[0]:
            with again(table).writer() as writer:
                put(writer, range(20, 30), "meanwhile")

    report = restore(watched(again(table).core, "restore", go_on_writing), held)
    now = rows(again(table))
    discarded = [row for row in expect((range(20, 30), "meanwhile")) if row not in now]
    assert 0 < len(discarded) < 10
    undone = rows(again(table), checkpoint=report.undo)
    assert [row for row in discarded if row not in undone] == []


def test_k11_a_restore_that_died_three_times_has_one_way_back(tmp_path: Path) -> None:
    table, held = filled(tmp_path)
    want = [(A, "a"), (B, "b"), (C, "c")]
    for n, (step, times) in enumerate([("shard", 1), ("base", 1), ("shard", 2)]):
        interrupted_restore(table, held, step, times)
        more = (range(20 + n, 40), f"after {n}")
        with again(table).writer() as writer:
            put(writer, *more)
        want.append(more)
    report = again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))
    assert rows(again(table), checkpoint=report.undo) == expect(*want)


def test_k11_a_way_back_is_whole_when_shards_were_flushed_since_the_attempt_before(
    tmp_path: Path,
) -> None:
    """The second attempt died before it reached the shards, and a writer flushed what was in the
    logs at that moment."""
    table, held = filled(tmp_path)
    interrupted_restore(table, held, "shard", 2)
    with again(table).writer(LOG_ONLY) as writer:
        put(writer, range(20, 40), "first")
    interrupted_restore(table, held, "base")
    with again(table).writer() as writer:
        put(writer, range(30, 50), "second")
    report = again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))
    everything = expect(
        (A, "a"), (B, "b"), (C, "c"), (range(20, 40), "first"), (range(30, 50), "second")
    )
    assert rows(again(table), checkpoint=report.undo) == everything


def test_k11_a_restore_of_another_checkpoint_keeps_the_way_back_of_the_first(
    tmp_path: Path,
) -> None:
    """The first took the base back and died; the second died before it did so itself."""
    table, first = filled(tmp_path)
    second = table.checkpoint(scope="durable")
    with table.writer() as writer:
        put(writer, range(50, 60), "d")
    table.compact()
    interrupted_restore(table, first, "base")
    interrupted_restore(table, second, "announced")
    report = again(table).restore(second)
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))
    everything = expect((A, "a"), (B, "b"), (C, "c"), (range(50, 60), "d"))
    assert rows(again(table), checkpoint=report.undo) == everything


def test_k11_rows_without_a_key_are_in_the_way_back_once(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.utf8())])
    table = weir.create(str(tmp_path / "t"), schema, sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": i, "v": "a"} for i in A])
    held = table.checkpoint(scope="all")
    for text in ("b", "c"):
        with table.writer(LOG_ONLY if text == "c" else None) as writer:
            writer.put([{"id": i, "v": text} for i in B])
    for step, times in (("announced", 1), ("base", 1), ("shard", 1)):
        interrupted_restore(table, held, step, times)
        with again(table).writer(LOG_ONLY if step == "base" else None) as writer:
            writer.put([{"id": i, "v": step} for i in C])
    undo = again(table).restore(held).undo

    def sorted_rows(**how: Any) -> list[tuple[int, str]]:
        found = again(table).scan(**how).to_table().to_pylist()
        return sorted((row["id"], row["v"]) for row in found)

    before = [(i, "a") for i in A]
    assert sorted_rows() == sorted(before)
    since = [(i, v) for i in B for v in ("b", "c")]
    since += [(i, step) for i in C for step in ("announced", "base", "shard")]
    assert sorted_rows(checkpoint=undo) == sorted(before + since)


def _load(table: weir.Table) -> None:
    load(table.core, lambda _base: pytest.fail("began"), job_id="j", replaces=True)


WAIT_FOR_A_RESTORE: dict[str, Callable[[weir.Table, Path], object]] = {
    "reshard": lambda t, _: t.reshard(weir.Bucket("id", 3)),
    "compact": lambda t, _: t.compact(lease=0),
    "load": lambda t, _: _load(t),
    "checkpoint": lambda t, _: t.checkpoint(),
    "durable checkpoint": lambda t, _: t.checkpoint("durable"),
    "clone of now": lambda t, p: t.clone(str(p / "copy")),
    "move_wal": lambda t, p: t.move_wal(str(p / "wal")),
}


@pytest.mark.parametrize("verb", WAIT_FOR_A_RESTORE)
@pytest.mark.parametrize("step", ["announced", "base", "shard"])
def test_k11_no_verb_makes_the_mixture_of_an_unfinished_restore_final(
    tmp_path: Path, step: str, verb: str
) -> None:
    table, held = filled(tmp_path)
    interrupted_restore(table, held, step)
    objects = {meta.path for meta in table.core.store.list("")}
    with pytest.raises(CommitConflict, match=f"restore of checkpoint {held.id}"):
        WAIT_FOR_A_RESTORE[verb](again(table), tmp_path)
    assert {meta.path for meta in table.core.store.list("")} == objects, "nothing was written"
    assert not (tmp_path / "copy").exists()
    undo = again(table).restore(held).undo
    assert rows(again(table)) == expect((A, "a"))
    again(table).restore(undo)
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


GO_ON: dict[str, Callable[[weir.Table, Any, Path], object]] = {
    "gc": lambda t, _, __: t.gc(min_age=0),
    "clone of a checkpoint": lambda t, held, p: t.clone(str(p / "copy"), held),
    "restore of another checkpoint": lambda t, _, __: t.restore("other"),
}


@pytest.mark.parametrize("verb", GO_ON)
def test_k11_verbs_that_need_not_wait_for_a_restore_go_on(tmp_path: Path, verb: str) -> None:
    table, held = filled(tmp_path)
    table.checkpoint("all", name="other")
    interrupted_restore(table, held, "shard")
    GO_ON[verb](again(table), held, tmp_path)
    again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))


@pytest.mark.parametrize("step", ["begun", "made", "checkpointed", "routed", "told"])
def test_k11_a_restore_waits_for_an_unfinished_reshard(tmp_path: Path, step: str) -> None:
    table, held = filled(tmp_path)
    everything = expect((A, "a"), (B, "b"), (C, "c"))
    with pytest.raises(Died):
        reshard(watched(again(table).core, "reshard", dies_at(step)), weir.Bucket("id", 3))
    with pytest.raises(CommitConflict, match=r"finish it: table\.reshard\(Bucket"):
        again(table).restore(held)
    assert read_lineage(table.core.store) is None, "the refusal wrote nothing"
    again(table).compact(lease=0)
    again(table).gc(min_age=0)
    pinned = again(table).checkpoint("durable")
    assert rows(again(table)) == rows(again(table), checkpoint=pinned) == everything
    again(table).reshard(weir.Bucket("id", 3))
    assert rows(again(table)) == everything
    with again(table).writer() as writer:
        put(writer, [99], "new")
    assert rows(table.clone(str(tmp_path / "copy"), held)) == expect((A, "a"))


def test_k11_a_reshard_that_began_beside_a_restore_waits_for_it(tmp_path: Path) -> None:
    table, held = filled(tmp_path)

    real = append_resharding

    def append(*args: Any) -> Any:
        interrupted_restore(table, held, "base")
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.upkeep.reshard.append_resharding", append)
        with pytest.raises(CommitConflict, match="restore of checkpoint"):
            again(table).reshard(weir.Bucket("id", 3))
    again(table).restore(held)
    again(table).reshard(weir.Bucket("id", 3))
    assert rows(again(table)) == expect((A, "a"))
    open_one = read_resharding(table.core.store)
    assert open_one is not None
    assert not open_one.is_open


def test_k11_a_refused_restore_calls_no_half_restored_table_ready(tmp_path: Path) -> None:
    """The one that was announced last has not touched the base; the one before it has."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, [0], "old")
    older = table.checkpoint()
    table.reshard(weir.Bucket("id", 3))
    held = []
    for ids in (A, B):
        with again(table).writer() as writer:
            put(writer, ids, "a")
        again(table).compact()
        held.append(again(table).checkpoint())
    with again(table).writer() as writer:
        put(writer, C, "c")
    again(table).compact()
    everything = rows(again(table))
    interrupted_restore(table, held[0], "base")
    interrupted_restore(table, held[1], "announced")
    with pytest.raises(weir.InvalidInput, match="was resharded after"):
        again(table).restore(older)
    lineage = read_lineage(table.core.store)
    assert lineage is not None
    assert lineage.state == "restoring"
    undo = again(table).restore(held[1]).undo
    assert rows(again(table), checkpoint=undo) == everything


def test_k11_a_restore_that_a_reshard_overtook_is_taken_back(tmp_path: Path) -> None:
    """It was announced, changed nothing and died; the reshard that ran beside it won."""
    table, held = filled(tmp_path)

    def overtake(step: str) -> None:
        if step == "begun":
            core = watched(again(table).core, "reshard", dies_at("made"))
            with pytest.raises(Died):
                reshard(core, weir.Bucket("id", 3))

    with pytest.raises(CommitConflict, match=r"finish it: table\.reshard\(Bucket"):
        restore(watched(again(table).core, "restore", overtake), held)
    again(table).reshard(weir.Bucket("id", 3))
    again(table).compact(lease=0)
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_l10_log_rows_of_a_checkpoint_are_restored_in_bounded_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring._log_tables, "__kwdefaults__", {"most": 1})
    table = make(tmp_path / "t", 1)
    with table.writer(LOG_ONLY) as writer:
        for number in range(4):
            put(writer, range(number, 6), f"put {number}")
        held = table.checkpoint("durable")
        put(writer, A, "discarded")
    want = rows(again(table), checkpoint=held)
    again(table).restore(held)
    assert len(table.shards()[0].manifest().sstables) == 4
    assert rows(again(table)) == want
    again(table).compact()
    assert rows(again(table), freshness="base") == want


@pytest.mark.parametrize("which", ["checkpoint", "way back"])
@pytest.mark.parametrize("step", ["announced", "base", "shard"])
def test_k11_what_an_unfinished_restore_needs_is_kept_for_it(
    tmp_path: Path, step: str, which: str
) -> None:
    """Deleted or expired, it left a table that no verb would take on, with no way out."""
    table, held = filled(tmp_path)
    mortal = table.checkpoint(name="mortal", ttl=1) if step == "announced" else held
    interrupted_restore(table, mortal, step)
    undo = next(c for c in again(table).checkpoints() if c.name == restoring.UNDO_NAME)
    with pytest.raises(CommitConflict, match=r"finish it: table\.restore"):
        again(table).delete_checkpoint(mortal if which == "checkpoint" else undo)
    late = at_time(again(table), [again(table).core.store.now() + 30 * 86_400])
    assert late.gc().ok
    assert {mortal.id, undo.id} <= {c.id for c in again(table).checkpoints()}
    before = rows(again(table), checkpoint=mortal)
    again(table).restore(mortal.id)
    assert rows(again(table)) == before
    again(table).delete_checkpoint(mortal)
    again(table).delete_checkpoint(undo)


@pytest.mark.parametrize("step", ["held", "begun"])
def test_k11_a_restore_whose_checkpoint_is_deleted_as_it_begins_leaves_the_table_in_use(
    tmp_path: Path, step: str
) -> None:
    table, held = filled(tmp_path)

    def delete(name: str) -> None:
        if name == step:
            again(table).delete_checkpoint(held)

    with pytest.raises(weir.CheckpointNotFound):
        restore(watched(again(table).core, "restore", delete), held)
    lineage = read_lineage(table.core.store)
    assert lineage is None or lineage.state == "ready"
    again(table).compact()
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_k11_no_shard_is_adopted_beside_an_unfinished_restore(tmp_path: Path) -> None:
    """Its order is decided by the table's rows, some of them from before and some from after."""
    table, held = filled(tmp_path)
    rival = uuid.uuid4()
    entries = field_entries(table.sharding, 0, None)
    table.core.log(rival).manifests.create(first_manifest(rival, 1, entries))
    interrupted_restore(table, held, "base")
    with pytest.raises(CommitConflict, match="restore"):
        again(table).adopt_shard(rival, "older")
    assert again(table).core.log(rival).manifests.require().status is Status.ACTIVE
