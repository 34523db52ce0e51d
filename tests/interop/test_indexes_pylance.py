"""Indexes that weir builds into SSTables, as pylance sees and uses them."""

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, LsmVectorSearchPlanner, ShardSnapshot

import weir
from tests.support.tables import compact_with_pylance

pytestmark = pytest.mark.interop

DIM = 16
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("cat", pa.utf8()),
        pa.field("text", pa.utf8()),
        pa.field("vec", pa.list_(pa.float32(), DIM)),
    ]
)


def rows(ids, rng):
    return [
        {
            "id": int(i),
            "x": float(rng.normal()),
            "cat": f"c{i % 5}",
            "text": " ".join(rng.choice(["fox", "dog", "owl", "hen"], 3)),
            "vec": rng.normal(size=DIM).astype("f4").tolist(),
        }
        for i in ids
    ]


def indexed_table(uri, rng, **text_options):
    table = weir.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put(rows(range(300), rng))
    compact_with_pylance(table)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("x", "BTREE", name="by_x")
    dataset.create_scalar_index("cat", "BITMAP", name="by_cat")
    dataset.create_scalar_index(
        "text", "INVERTED", name="words", with_position=False, **text_options
    )
    dataset.create_index("vec", "IVF_FLAT", name="near", metric="cosine", num_partitions=2)
    return table


def sstables(table):
    shard = table.shard(None)
    manifest = shard.manifest()
    folded = table.core.lake.open_base().compacted.get(shard.id, 0)
    fresh = [s for s in manifest.sstables if s.generation > folded]
    snapshot = ShardSnapshot(str(shard.id)).with_current_generation(manifest.current_generation)
    for one in fresh:
        snapshot.with_sstable(one.generation, one.path)
    folder = f"{table.uri}/_mem_wal/{shard.id}"
    return [lance.dataset(f"{folder}/{one.path}") for one in fresh], snapshot


@pytest.fixture
def flushed(tmp_path):
    """A table whose base has every kind of index, and one SSTable with updates and deletes."""
    rng = np.random.default_rng(5)
    table = indexed_table(str(tmp_path / "t"), rng, stem=False)
    with table.writer() as writer:
        writer.put(rows(range(200, 500), rng))
        writer.put(rows(range(200, 230), rng))  # superseded within the SSTable
        writer.delete([240, 241])
    return table


def test_the_sstable_lists_every_maintained_index(flushed):
    (sstable,), _ = sstables(flushed)
    found = {i.name: (i.index_type, list(i.field_names)) for i in sstable.describe_indices()}
    assert found == {
        "by_x": ("BTree", ["x"]),
        "by_cat": ("Bitmap", ["cat"]),
        "words": ("Inverted", ["text"]),
        "near": ("IVF_FLAT", ["vec"]),
    }
    words = next(i for i in sstable.describe_indices() if i.name == "words")
    assert words.details["stem"] is False  # the settings of the base index


def test_plans_on_the_sstable_use_them(flushed):
    (sstable,), _ = sstables(flushed)
    query = np.ones(DIM, "f4")
    plans = {
        "ScalarIndexQuery: query=[x > 1]@by_x": sstable.scanner(filter="x > 1"),
        "ScalarIndexQuery: query=[cat = c1]@by_cat": sstable.scanner(filter="cat = 'c1'"),
        "MatchQuery: column=text": sstable.scanner(full_text_query="fox"),
        "ANNSubIndex: name=near": sstable.scanner(nearest={"column": "vec", "q": query, "k": 3}),
    }
    for part, scanner in plans.items():
        assert part in scanner.explain_plan()


def test_indexes_keep_to_the_deletion_vector(flushed):
    """No index returns rows that are superseded within the SSTable."""
    (sstable,), _ = sstables(flushed)
    truth = sstable.to_table().to_pylist()
    assert len(truth) == 300
    for filter in ("x > 0.5", "cat = 'c1'"):
        through = sstable.to_table(filter=filter, columns=["id"])["id"].to_pylist()
        plain = sstable.scanner(filter=filter, columns=["id"], use_scalar_index=False).to_table()
        assert through == plain["id"].to_pylist()
    query = np.ones(DIM, "f4")
    found = sstable.scanner(nearest={"column": "vec", "q": query, "k": 999}).to_table()
    with_vector = sorted(r["id"] for r in truth if r["vec"] is not None)
    assert sorted(found["id"].to_pylist()) == with_vector


def test_the_scan_of_fresh_rows_and_base_goes_through_scalar_indexes(flushed):
    base = flushed.core.lake.open_base()
    assert "@by_x(BTree)" in base.dataset.scanner(filter="x > 1").explain_plan()
    assert flushed.scan(filter="x > 1").count() == sum(
        x > 1 for x in flushed.scan(["x"]).to_table()["x"].to_pylist()
    )


def test_pylance_finds_the_same_neighbours(flushed):
    _, snapshot = sstables(flushed)
    dataset = lance.dataset(flushed.uri)
    planner = LsmVectorSearchPlanner(dataset, [snapshot], "vec", distance_type="cosine")
    for seed in range(5):
        query = np.random.default_rng(seed).normal(size=DIM).astype("f4")
        plan = planner.plan_search(
            pa.array(query), k=10, columns=["id"], refine_base_table=True, overfetch_factor=10.0
        )
        theirs = plan.to_table()
        ours = flushed.search("vec", query, k=10, columns=["id"])
        assert ours["id"].to_pylist() == theirs["id"].to_pylist()
        assert ours["_distance"].to_pylist() == pytest.approx(
            theirs["_distance"].to_pylist(), abs=1e-5
        )
    assert LsmScanner.from_snapshots(dataset, [snapshot]).count_rows() == flushed.scan().count()


def test_sstables_of_pylance_are_searched_too(tmp_path):
    rng = np.random.default_rng(7)
    table = indexed_table(str(tmp_path / "t"), rng)
    shard = str(table.shard(None).id)
    fresh = rows(range(250, 400), rng)
    with lance.dataset(table.uri).mem_wal_writer(shard) as native:
        native.put(pa.Table.from_pylist(fresh, schema=lance.dataset(table.uri).schema))
        native.delete(pa.table({"id": pa.array([251], pa.int64())}))
    (sstable,), _ = sstables(table)
    assert "words" in [i.name for i in sstable.describe_indices()]
    truth = {r["id"]: r for r in table.scan().to_table().to_pylist()}
    for text in ("fox", "owl hen"):
        found = table.search("text", text, k=1000)["id"].to_pylist()
        words = set(text.split())
        assert sorted(found) == sorted(i for i, r in truth.items() if words & {*r["text"].split()})
    query = rng.normal(size=DIM).astype("f4")
    exact = table.search("vec", query, k=10, exact=True)["id"].to_pylist()
    near = table.search("vec", query, k=10)["id"].to_pylist()
    assert len(set(near) & set(exact)) >= 9  # pylance's HNSW is approximate
    assert 251 not in table.search("vec", query, k=1000)["id"].to_pylist()


@pytest.mark.parametrize(
    ("maintained", "names"),
    [(None, {"by_x", "by_cat", "words", "near"}), (["words"], {"words"}), ([], set())],
)
def test_the_table_chooses_what_is_maintained(tmp_path, maintained, names):
    uri = str(tmp_path / "t")
    rng = np.random.default_rng(1)
    field = pa.field(
        "id",
        pa.int64(),
        nullable=False,
        metadata={"lance-schema:unenforced-primary-key": "true"},
    )
    schema = pa.schema([field, *list(SCHEMA)[1:]])
    dataset = lance.write_dataset(pa.Table.from_pylist(rows(range(50), rng), schema=schema), uri)
    dataset.create_scalar_index("x", "BTREE", name="by_x")
    dataset.create_scalar_index("cat", "BITMAP", name="by_cat")
    dataset.create_scalar_index("text", "INVERTED", name="words", with_position=False)
    dataset.create_index("vec", "IVF_FLAT", name="near", num_partitions=1)
    chosen = {} if maintained is None else {"maintained_indexes": maintained}
    dataset.initialize_mem_wal(unsharded=True, **chosen)
    table = weir.enable(uri)
    with table.writer() as writer:
        writer.put(rows(range(50, 60), rng))
    (sstable,), _ = sstables(table)
    assert {i.name for i in sstable.describe_indices()} == names


def test_index_configs_come_before_the_tables_choice(tmp_path):
    rng = np.random.default_rng(1)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    config = weir.WriterConfig(
        index_configs=(
            weir.IndexConfig("near", "vec", "vector", metric="cosine"),
            weir.IndexConfig("words", "text", "text"),
        )
    )
    with table.shard(None).writer(config) as writer:
        writer.put(rows(range(20), rng))
        writer.put([{"id": 99, "x": 0.0, "cat": None, "text": None, "vec": None}])
        before = writer.search("vec", np.ones(DIM), k=5)
        writer.flush()
        assert writer.search("vec", np.ones(DIM), k=5)["id"] == before["id"]
    (sstable,), _ = sstables(table)
    assert {i.name for i in sstable.describe_indices()} == {"near", "words"}
    # A reader finds the metric that the table's writers use although the base has no index.
    assert table.search("vec", np.ones(DIM), k=5)["id"] == before["id"]


def test_a_flush_goes_on_without_an_index_that_cannot_be_built(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    config = weir.WriterConfig(index_configs=(weir.IndexConfig("near", "vec", "vector"),))
    with table.shard(None).writer(config) as writer:
        writer.put([{"id": 1, "x": 0.0, "cat": None, "text": None, "vec": None}])
    (sstable,), _ = sstables(table)
    assert not sstable.describe_indices()
    assert table.scan().count() == 1
    assert table.search("vec", np.ones(DIM)).num_rows == 0
