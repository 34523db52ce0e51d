"""L-7, L-9: loads that bypass the log are atomic, permanent, and override all earlier rows."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.rules.test_fold_beside_commits import Rows, make, put, rewrite_files, rows_of, upsert
from tests.support.dying import Life, die_at_every_write
from weir.errors import CommitConflict, FencedError, SnapshotExpired, UnknownOutcome
from weir.lake.api import Base
from weir.lake.base import fold, fold_commit
from weir.lake.base.history import History
from weir.lake.datasets import Datasets
from weir.spark.overwrite import overwrite
from weir.spark.staging import Stage
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.compact.run import compact
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.loads import PreparedLoad, close_logs, delete_matching, fold_older, load
from weir.upkeep.owner import Owner
from weir.upkeep.pinning import base_marks

NEW: Rows = Counter({(key, "new"): 1 for key in range(3)})
NOTHING: Rows = Counter()


def filled(tmp_path: Path, *, keyed: bool) -> tuple[weir.Table, Rows]:
    """Rows in the base, in SSTables and in the log of a writer that never closed."""
    table = make(tmp_path, keyed=keyed)
    put(table, dict.fromkeys(range(6), "base"))
    table.compact()
    put(table, dict.fromkeys(range(4, 10), "sstable"))
    table.writer().put([{"id": key, "v": "log"} for key in (8, 20)])
    reopened = weir.open(table.uri)
    return reopened, rows_of(reopened)


def replace_by(table: weir.Table, rows: Rows, job: str = "load") -> None:
    stage = Stage(table.core, job, 0, limit=1 << 20)
    for key, value in rows.elements():
        stage.add(pa.RecordBatch.from_pylist([{"id": key, "v": value}], table.core.schema().plain))
    staged: dict[object, list[object]] = {}
    for file in stage.finish():
        staged.setdefault(file.value, []).append(file)
    overwrite(table.core, staged, job)  # type: ignore[arg-type]


def write_two(base: Base) -> PreparedLoad:
    rows = [{"id": key, "v": "new"} for key in (30, 31)]
    return PreparedLoad(fold.write_rows(base, pa.Table.from_pylist(rows, base.schema.plain)), 2)


@pytest.mark.parametrize(
    ("keyed", "rows"), [(True, NEW), (False, NOTHING)], ids=["keyed, rows", "no key, nothing"]
)
def test_l7_a_replacing_load_that_dies_at_any_write_brings_nothing_back(
    tmp_path: Path, keyed: bool, rows: Rows
) -> None:
    state: list[tuple[weir.Table, Rows]] = []
    seen = Counter[str]()

    def run(life: Life) -> None:
        state.append(filled(tmp_path, keyed=keyed))
        replace_by(life.table(state[-1][0]), rows)

    def check(_deaths: int, finished: bool) -> None:
        table, old = state[-1]
        now = rows_of(weir.open(table.uri))
        assert now in (old, rows), "neither what was there nor what replaced it"
        assert now == rows or not finished
        seen["new" if now == rows else "old"] += 1
        # The next run completes the load; rows that were replaced never come back.
        rewrite_files(table)
        assert rows_of(weir.open(table.uri)) == now
        put(table, {77: "later"})
        compact(weir.open(table.uri).core, lease=0)
        assert rows_of(weir.open(table.uri)) == now + Counter({(77, "later"): 1})

    die_at_every_write(run, check)
    assert seen["old"] > 3
    assert seen["new"] > 3, "it must have died after the commit, too"


@pytest.mark.parametrize("keyed", [True, False])
def test_l7_a_load_that_died_after_its_commit_is_completed_by_the_next(
    tmp_path: Path, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = filled(tmp_path, keyed=keyed)

    def died(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(table.core.lake), "mark_compacted", died)
        with pytest.raises(KeyboardInterrupt):
            replace_by(table, NEW)
    other = weir.open(table.uri)
    pinned = other.checkpoint(scope="durable", name="between")
    with without_compaction(other.core):
        pass
    base = other.core.lake.open_base()
    for shard in other.shards():
        folded = base.compacted[shard.id]
        assert all(t.generation <= folded for t in shard.manifest().sstables), "not marked"
    assert dict(base.compacted) == dict(base.marked)  # type: ignore[attr-defined]
    latest = Jobs(other.core.store).latest()
    assert latest is not None
    assert not latest.is_open
    assert rows_of(other) == rows_of(other, checkpoint=pinned) == NEW
    copy = other.clone(str(tmp_path / "copy"), checkpoint=pinned)
    copy.compact()
    assert rows_of(copy) == rows_of(copy, freshness="base") == NEW


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_l7_a_load_that_lost_its_claim_after_its_commit_is_done(
    tmp_path: Path, keyed: bool, replaces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load asked for a rerun, after which an append-only table had its rows twice."""
    table, old = filled(tmp_path, keyed=keyed)
    lake = type(table.core.lake)
    commit = lake.commit_fold

    def overtaken(*args: object, **kwargs: object) -> int:
        version: int = commit(*args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.undo()
        with without_compaction(weir.open(table.uri).core):
            pass
        return version

    if not replaces:
        fold_older(table.core)  # so that the only commit is the load's
    monkeypatch.setattr(lake, "commit_fold", overtaken)
    version, _ = load(weir.open(table.uri).core, write_two, job_id="load", replaces=replaces)
    brought: Rows = Counter({(30, "new"): 1, (31, "new"): 1})
    assert (
        rows_of(table, freshness="base")
        == rows_of(table)
        == (brought if replaces else old + brought)
    )
    assert table.core.lake.open_base(version).count() == (2 if replaces else old.total() + 2)


@pytest.mark.parametrize(
    ("verb", "told"), [("fence_base", CommitConflict), ("commit_fold", UnknownOutcome)]
)
def test_g6_a_load_that_slept_and_came_to_a_collected_place_is_no_success(
    tmp_path: Path, verb: str, told: type[weir.WeirError], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = filled(tmp_path, keyed=False)
    lake = type(table.core.lake)
    commit = getattr(lake, verb)

    def slept(*args: object, **kwargs: object) -> int:
        version: int = commit(*args, **kwargs)
        base_marks(table.core).raise_to(version)
        return version

    monkeypatch.setattr(lake, verb, slept)
    with pytest.raises(told, match="commit does not count"):
        load(table.core, write_two, job_id="load", replaces=False)


@pytest.mark.parametrize("replaces", [True, False])
def test_g12_a_load_whose_base_was_cleaned_up_is_to_be_run_again(
    tmp_path: Path, replaces: bool
) -> None:
    """This was reported as damage to a healthy table."""
    table, old = filled(tmp_path, keyed=False)

    def write(base: Base) -> PreparedLoad:
        written = write_two(base)
        rewrite_files(table)
        upsert(table, 99)
        lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=False)
        return written

    with pytest.raises(CommitConflict, match="nothing was loaded"):
        load(table.core, write, job_id="load", replaces=replaces)
    assert rows_of(table) == old + Counter({(99, "stranger"): 1})


def test_l8_a_replacing_load_beside_a_plain_insert_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, old = filled(tmp_path, keyed=True)
    written = fold.write_rows

    def meddle(*args: object, **kwargs: object) -> fold.VersionEdit:
        made = written(*args, **kwargs)  # type: ignore[arg-type]
        upsert(table, 99)
        return made

    monkeypatch.setattr(fold, "write_rows", meddle)
    with pytest.raises(CommitConflict, match="run it again"):
        replace_by(table, NEW)
    monkeypatch.undo()
    assert rows_of(table) == old + Counter({(99, "stranger"): 1})
    replace_by(table, NEW)
    assert rows_of(table) == NEW


@pytest.mark.parametrize("config", [None, weir.WriterConfig(enable_memtable=False)])
def test_l9_everything_written_before_a_load_is_folded_below_it(
    tmp_path: Path, config: weir.WriterConfig | None
) -> None:
    table, old = filled(tmp_path, keyed=True)
    writer = table.writer(config=config)
    writer.put([{"id": 30, "v": "log"}])
    writer.delete([4])
    fold_older(weir.open(table.uri).core)
    model = {key: v for (key, v) in old if key != 4} | {30: "log"}
    assert rows_of(table) == rows_of(table, freshness="base") == Counter(model.items())
    with pytest.raises(FencedError):
        writer.put([{"id": 4, "v": "its writer was ended"}])


def test_l9_a_load_is_refused_while_a_compaction_holds_older_rows(tmp_path: Path) -> None:
    table, old = filled(tmp_path, keyed=True)
    refused: list[str] = []

    def load(step: str) -> None:
        if step == "planned":
            with pytest.raises(CommitConflict, match="Nothing was loaded") as error:
                fold_older(weir.open(table.uri).core)
            refused.append(str(error.value))

    compact(watched(table.core, "compact", load))
    assert refused
    fold_older(table.core)
    assert rows_of(table, freshness="base") == old


@pytest.mark.parametrize("times", [2, 3])
def test_l9_a_load_beside_writers_that_come_back_closes_their_logs_again(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = filled(tmp_path, keyed=True)
    flush, came = Owner.flush, 0

    def contested(owner: Owner) -> object:
        nonlocal came
        came += 1
        if came <= times:
            raise FencedError("another writer came", epoch=1, fenced_by=2)
        return flush(owner)

    monkeypatch.setattr(Owner, "flush", contested)
    if times == 3:
        with pytest.raises(CommitConflict, match="nothing was loaded"):
            close_logs(table.core)
        return
    cuts = close_logs(table.core)
    before = came
    assert [cut.sstables for cut in close_logs(table.core)] == [cut.sstables for cut in cuts]
    assert came == before, "no log holds a row any more"


def test_l9_a_load_into_a_quiet_table_fences_nobody(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "a"})
    table.compact()
    with table.writer() as writer:
        fold_older(weir.open(table.uri).core)
        writer.put([{"id": 2, "v": "b"}])
    assert rows_of(table) == Counter({(1, "a"): 1, (2, "b"): 1})


def test_l7_a_load_whose_own_commit_came_back_as_taken_and_grew_old_is_no_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy repeats the request, the process sleeps, and the history is cleaned up."""
    table = make(tmp_path, keyed=False)
    commit = Datasets.commit

    def repeated(self: Datasets, dataset: lance.LanceDataset, transaction: Any) -> int:
        version = commit(self, dataset, transaction)
        if fold_commit.FOLD not in (transaction.transaction_properties or {}):
            return version
        is_gone.append(True)
        raise CommitConflict("somebody else got the version")

    commits = History.commits

    def commits_left(*args: Any, **kwargs: Any) -> Any:
        if is_gone:
            raise SnapshotExpired("cleaned up")
        return commits(*args, **kwargs)

    is_gone: list[bool] = []
    monkeypatch.setattr(Datasets, "commit", repeated)
    monkeypatch.setattr(History, "commits", commits_left)
    with pytest.raises(UnknownOutcome, match="Check whether its rows are in the base"):
        load(table.core, write_two, job_id="load", replaces=False)
    assert rows_of(weir.open(table.uri)) == Counter({(30, "new"): 1, (31, "new"): 1})


def test_l4_rows_without_a_key_are_deleted_wherever_they_are_by_one_commit(tmp_path: Path) -> None:
    table, before = filled(tmp_path, keyed=False)
    assert delete_matching(table.core, "id >= 4 AND id < 9", job_id="gone") == 8
    left = Counter({row: n for row, n in before.items() if not 4 <= row[0] < 9})
    assert rows_of(table) == left
    loads = [c.version for c in table.core.lake.commits(after=1) if "weir.bulk" in c.properties]
    assert len(loads) == 1
    assert delete_matching(table.core, "id > 100", job_id="none") == 0
    assert table.core.lake.open_base().load_number <= loads[0], "nothing matched: no load"
    put(table, {4: "later"})
    assert rows_of(table) == left + Counter({(4, "later"): 1})


def test_l8_a_delete_beside_a_stranger_that_rewrites_the_base_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows may be in files that the delete has not looked at."""
    table, before = filled(tmp_path, keyed=False)
    hide = fold.hide_addresses

    def slow(base: Base, addresses: Any) -> fold.VersionEdit:
        monkeypatch.undo()
        found = hide(base, addresses)
        rewrite_files(table)
        return found

    monkeypatch.setattr(fold, "hide_addresses", slow)
    with pytest.raises(CommitConflict, match="another program changed rows of the base"):
        delete_matching(table.core, "id < 4", job_id="gone")
    assert rows_of(table) == before
