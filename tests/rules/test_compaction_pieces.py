"""P-5, L-4, C-11: however a compaction is cut, the base holds what a dictionary holds."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

import weir
from weir.lake.base import fold
from weir.read import reader
from weir.read.survey import survey
from weir.upkeep.compact import split
from weir.upkeep.compact.plan import PendingShard, find_pending, make_job
from weir.upkeep.compact.run import compact
from weir.upkeep.tasks import LocalRunner, run_task

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("s", pa.utf8(), nullable=False),
        pa.field("v", pa.int32()),
    ]
)

VALUES = itertools.count()
"""No two rows are equal."""
Write = tuple[int, bool]
"""A key, and whether its row is deleted."""


class Pieces(LocalRunner):
    """Executors in one process: every task twice, as under speculation."""

    name = "pieces"

    def run(self, core: Any, tasks: Any, progress: Any) -> Any:
        self.tasks = list(tasks)
        for task in tasks:
            run_task(core, task)
        return super().run(core, tasks, progress)


def row(key: int, value: int) -> dict[str, Any]:
    return {"n": key * 2**40 - 2**42, "s": f"k{key}", "v": value}


def fill(table: weir.Table, model: dict[int, int], batches: Sequence[Sequence[Write]]) -> None:
    """One generation, or some entries of the log, for each of `batches`."""
    key = list(table.primary_key)
    for writes in batches:
        with table.writer() as writer:
            for n, gone in writes:
                value = next(VALUES)
                if gone:
                    keys = pa.Table.from_pylist([row(n, 0)], schema=SCHEMA).select(key)
                    writer.delete(keys)
                    model.pop(n, None)
                else:
                    writer.put([row(n, value)])
                    model[n] = value


def in_base(table: weir.Table) -> dict[str, int]:
    rows = table.scan(freshness="base").to_table().to_pylist()
    assert len({r["s"] for r in rows}) == len(rows)
    return {r["s"]: r["v"] for r in rows}


GENERATIONS = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=12),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("key", [("n",), ("s",), ("n", "s")])
@given(
    wal_only=st.booleans(),
    old=GENERATIONS,
    new=GENERATIONS,
    slice_rows=st.integers(1, 20),
    task_bytes=st.integers(50, 2000),
    slots=st.integers(1, 4),
    reshard_to=st.sampled_from([None, None, 1, 3]),
)
@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # small already; shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_p5_pieces_of_any_size_give_the_rows_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    key: tuple[str, ...],
    wal_only: bool,
    old: list[list[Write]],
    new: list[list[Write]],
    slice_rows: int,
    task_bytes: int,
    slots: int,
    reshard_to: int | None,
) -> None:
    uri = str(tmp_path_factory.mktemp("pieces") / "t")
    config = weir.WriterConfig(enable_memtable=not wal_only)
    table = weir.create(
        uri,
        SCHEMA,
        primary_key=key,
        sharding=weir.Bucket(key[0], 2),
        writer_defaults=config,
    )
    model: dict[int, int] = {}
    fill(table, model, old)
    table.compact()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "SLICE_ROWS", slice_rows)
        patch.setattr(split, "TASK_BYTES", task_bytes)
        patch.setattr(split, "SPLIT_BYTES", 100)
        patch.setattr(split, "FRAGMENT_ROWS", 3)
        patch.setattr(fold, "FIND_BATCH_ROWS", 2)
        patch.setattr(reader, "UNIT_ENTRIES", 2)
        fill(table, model, new)
        if reshard_to is not None:
            # C-11: rows of the sealed shards are older than rows written to their heirs now.
            table.reshard(weir.Bucket(key[0], reshard_to))
            fill(table, model, [[(3, False), (4, True)]])
        runner = Pieces(slots)
        compact(table.core, engine=runner, rewrite=False)
    assert in_base(table) == {f"k{n}": value for n, value in model.items()}
    # If two shards have more rows than two slices, one of them has more rows than a slice.
    rows = sum(len({number for number, _ in put}) for put in new)
    if reshard_to is None and len(new) > 1 and slice_rows < 3 and rows > 2 * slice_rows:
        assert any("units" in task for task in runner.tasks)


def test_l4_an_sstable_that_does_not_tell_its_rows_stays_whole(tmp_path: Path) -> None:
    """SSTables of other writers may record neither rows nor bytes, or only bytes."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="n")
    fill(table, {}, [[(n, False) for n in range(9)], [(n, False) for n in range(5, 12)]])
    seen = survey(table.core)
    base, waiting = seen.base, find_pending(table.core, seen, fold_wal=False)
    for nbytes in (None, 1 << 40):
        silent = [
            structs.replace(t, physical_rows=None, in_memory_bytes=nbytes)
            for t in waiting[0].cut.sstables
        ]
        weights = [t.size for t in silent]
        cut = structs.replace(waiting[0].cut, sstables=tuple(silent))
        told = PendingShard(cut, 0, sum(size for _, size in weights))
        job = make_job("job", base, [told])
        tasks = split.make_tasks(job, base, [told], engine="spark", slots=2, cluster=False)
        pieces = [task.get("units", [0, 2]) for task in tasks if "fragments" not in task]
        assert sorted(n for first, end in pieces for n in range(first, end)) == [0, 1]
        assert all(task.get("within") is None for task in tasks)


@pytest.mark.parametrize("damaged", [{"physical_rows": 1 << 40}, {"in_memory_bytes": 1 << 60}])
def test_l4_damaged_sizes_of_an_sstable_do_not_multiply_the_work(tmp_path: Path, damaged) -> None:
    """Found by an attack: one forged number, and a compaction had 130 000 pieces to read."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="n")
    fill(table, {}, [[(n, False) for n in range(9)], [(n, False) for n in range(5, 12)]])
    seen = survey(table.core)
    (one,) = seen
    first, second = one.manifest.sstables
    forged = replace(one.manifest, sstables=(first, structs.replace(second, **damaged)))
    seen = seen.having([replace(one, manifest=forged)], seen.base)
    waiting = find_pending(table.core, seen, fold_wal=False)
    assert [w.rows for w in waiting] == [16]
    assert waiting[0].nbytes < split.TASK_BYTES
    job = make_job("job", seen.base, waiting)
    tasks = split.make_tasks(job, seen.base, waiting, engine="spark", slots=2, cluster=False)
    assert [task["run"] for task in tasks if "fragments" not in task] == [
        "compact.tasks.write_rows"
    ]
