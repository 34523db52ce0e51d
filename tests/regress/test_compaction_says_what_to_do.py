"""Beside Lance's clean-up of all versions a compaction did not say how to go on, and beside a
reshard it told its caller to find other shards."""

from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import again
from weir.errors import CommitConflict, SnapshotExpired, UnknownOutcome
from weir.lake.base import fold_commit
from weir.lake.base.history import History
from weir.lake.datasets import Datasets
from weir.upkeep.compact.run import compact
from weir.upkeep.reshard import reshard

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
LOG_ONLY = weir.WriterConfig(enable_memtable=False)


def ids(table: weir.Table) -> Counter[int]:
    return Counter(again(table).scan().to_table()["id"].to_pylist())


@pytest.mark.parametrize("config", [None, LOG_ONLY], ids=["SSTables", "log"])
@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("is_applied", [True, False])
def test_l7_an_unknown_commit_of_a_compaction_is_resolved_by_the_next_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_applied: bool,
    key: str | None,
    config: weir.WriterConfig | None,
) -> None:
    """Its commit met another one, and Lance cleaned up all older versions."""
    table = weir.create(tmp_path / "t", SCHEMA, primary_key=key)
    with table.writer(config) as writer:
        writer.put([{"id": 1}, {"id": 2}])
    real = Datasets.commit
    met: list[bool] = []

    def meets_another(self: Datasets, dataset: lance.LanceDataset, transaction: Any) -> int:
        if fold_commit.FOLD not in (transaction.transaction_properties or {}) or met:
            return real(self, dataset, transaction)
        if is_applied:
            real(self, dataset, transaction)
        met.append(True)
        raise CommitConflict("somebody else got the version")

    commits = History.commits

    def commits_left(*args: Any, **kwargs: Any) -> Any:
        if met == [True]:
            met.append(True)
            raise SnapshotExpired("cleaned up")
        return commits(*args, **kwargs)

    monkeypatch.setattr(Datasets, "commit", meets_another)
    monkeypatch.setattr(History, "commits", commits_left)
    with pytest.raises(UnknownOutcome, match="Run compact again, with lease=0"):
        table.compact()
    again(table).compact(lease=0)
    assert ids(table) == Counter([1, 2])
    assert lance.dataset(table.uri).count_rows() == 2


def test_c11_a_compaction_that_meets_a_reshard_is_to_be_run_again(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    writer = table.writer()
    writer.put([{"id": number} for number in range(8)])

    def meanwhile(step: str) -> None:
        if step == "fenced":
            with pytest.raises(Died):
                reshard(watched(again(table).core, "reshard", dies_at("sealed")), sharding)

    sharding = weir.Bucket("id", 3)
    with pytest.raises(CommitConflict, match="run compact again"):
        compact(watched(again(table).core, "compact", meanwhile), fold_wal=True)
    again(table).reshard(sharding)
    again(table).compact(fold_wal=True)
    assert lance.dataset(table.uri).count_rows() == 8
    assert ids(table) == Counter(range(8))
