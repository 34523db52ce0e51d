"""A compactor died between its commit and its marks; a reshard took its claim and dropped the job.

The rows were in the base and the generation was unmarked, known only by the fold's announcement.
The next compaction withdrew that as settled, and every row of the generation was read twice (L-4;
seed 700127 of the simulator, scenario reshards). A restore takes the same claim.
"""

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from weir.upkeep import reshard as resharding
from weir.upkeep.compact.run import compact
from weir.upkeep.exclusive import without_compaction

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def put(table, *ids):
    with table.writer() as writer:
        writer.put([{"id": i, "v": "x"} for i in ids])


def ids_of(table):
    return sorted(table.scan().to_table()["id"].to_pylist())


@pytest.fixture
def table(tmp_path):
    """An append-only table with a fold that is committed but not marked."""
    made = weir.create(str(tmp_path / "t"), SCHEMA)
    put(made, 1, 2, 3)
    with pytest.raises(Died):
        compact(watched(made.core, "compact", dies_at("committed")))
    return made


def test_l4_whoever_holds_the_claim_completes_the_dead_job(table):
    with without_compaction(table.core):
        assert table.core.lake.open_base().marked, "the generation is marked"
    put(table, 4)
    compact(table.core, lease=0)
    assert ids_of(weir.open(table.uri)) == [1, 2, 3, 4]


def test_l4_a_reshard_after_a_dead_fold_doubles_nothing(table):
    resharding.reshard(table.core, weir.Bucket("id", 2), compact=False)
    fresh = weir.open(table.uri)
    put(fresh, 4)
    compact(fresh.core, lease=0)
    compact(fresh.core, lease=0)
    assert ids_of(weir.open(table.uri)) == [1, 2, 3, 4]
