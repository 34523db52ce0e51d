"""Tasks in another process tidy files and indexes, and copy bases (P-5)."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import weir
from weir.routing.core import Core
from weir.upkeep.clone import clone
from weir.upkeep.compact.tidying import tidy
from weir.upkeep.tasks import Progress, Result, Task, run_task

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


class Elsewhere:
    """An engine that shares only the store with the planner; every task runs twice."""

    name = "elsewhere"
    slots = 2

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, core: Core, tasks: Sequence[Task], progress: Progress | None) -> list[Result]:
        results: list[Result] = []
        for task in tasks:
            for _ in range(2):
                sent = json.loads(json.dumps(task))
                result = json.loads(json.dumps(run_task(weir.open(core.uri).core, sent)))
            self.ran.append(str(task["run"]))
            results.append(result)
        return results


def made(folder: Path) -> weir.Table:
    """A table of twenty small files, half of them indexed."""
    table = weir.create(str(folder / "t"), SCHEMA, primary_key="id")
    for number in range(20):
        with table.writer() as writer:
            writer.put([{"id": number * 5 + k, "v": f"v{k}"} for k in range(5)])
        table.compact(rewrite=False, indexes=False)
        if number == 10:
            table.core.lake.open_base().dataset.create_scalar_index("v", "BTREE")
    return table


def rows(table: weir.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.scan(order_by="id").to_table().to_pylist()
    return found


def test_p5_files_and_indexes_are_tidied_by_tasks(tmp_path: Path) -> None:
    table, engine = made(tmp_path), Elsewhere()
    before = rows(table)
    assert tidy(table.core, engine=engine) == []
    assert {"compact.tidying.rewrite", "compact.tidying.optimize"} == set(engine.ran)
    dataset = table.core.lake.open_base().dataset
    assert len(dataset.get_fragments()) <= 2, "with the index, and without"
    assert dataset.stats.index_stats("v_idx")["num_unindexed_rows"] == 0
    assert rows(weir.open(table.uri)) == before
    # Beside a commit that changes the same files nothing is lost: it is left for the next time.
    assert tidy(table.core, rewrite=False, indexes=False, engine=engine) == []


def test_p5_a_deep_clone_is_copied_by_tasks(tmp_path: Path) -> None:
    table, engine = made(tmp_path), Elsewhere()
    copy = clone(table.core, str(tmp_path / "copy"), deep=True, engine=engine)
    assert set(engine.ran) == {"copying.copy_objects"}
    assert len(engine.ran) == 4
    assert rows(weir.open(copy.uri)) == rows(table)
