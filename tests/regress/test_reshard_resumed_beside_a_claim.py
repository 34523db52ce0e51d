"""Found by the simulator (seed 9000545): a reshard that had sealed its shards and then failed
wanted their rows folded before it continued. It was refused as long as a dead compactor's claim
stood, and all writers waited for it. Its failure had no real cause: a checkpoint of several shards
did not recognize its own record when the request was repeated on its way."""

from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from weir.records.checkpoints import Checkpoint
from weir.records.cut import ShardCut
from weir.records.holds import Holds
from weir.routing.core import first_manifest
from weir.store.memory import MemoryStore
from weir.types import Position
from weir.upkeep.reshard import reshard

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


class DeadRunner:
    """Dies in the compaction it is asked to run."""

    name = "dead"
    slots = 1

    def run(self, *_: object) -> NoReturn:
        raise Died


def test_c11_an_interrupted_change_goes_on_although_a_compactor_died_meanwhile(
    tmp_path: Path,
) -> None:
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    with table.writer() as writer:
        writer.put([{"id": n, "v": "old"} for n in range(10)])

    with pytest.raises(Died):
        reshard(watched(table.core, "reshard", dies_at("checkpointed")), weir.Bucket("id", 3))
    with pytest.raises(Died):
        weir.open(table.uri).compact(engine=DeadRunner())
    report = reshard(weir.open(table.uri).core, weir.Bucket("id", 3), compact=False)
    assert len(report.sealed) == 2
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": n, "v": "new"} for n in range(5, 15)])
    rows = weir.open(table.uri).scan().to_table().to_pylist()
    assert {r["id"]: r["v"] for r in rows} == {n: "old" if n < 5 else "new" for n in range(15)}


def test_f9_a_checkpoint_of_several_shards_knows_its_own_record() -> None:
    first, second = (
        ShardCut.of(first_manifest(UUID(int=number), 0, ()), Position(0)) for number in (1, 2)
    )
    records = Holds(MemoryStore())
    draft = Checkpoint(
        UUID(int=7), "all", created=0.0, base_version=1, routing_version=1, shards=(second, first)
    )
    pending = records.announce(draft, pending_until=60.0)
    confirmed = records.confirm(pending, expires=None)
    assert records.confirm(pending, expires=None).seq == confirmed.seq
    with pytest.raises(weir.CommitConflict):
        records.confirm(pending, expires=99.0)
