"""Tables for the tests of the lake."""

import itertools
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from weir.lake.base import adopt
from weir.lake.pylance_lake import PylanceLake
from weir.store.open import open_store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])

MakeLake = Callable[..., PylanceLake]


@pytest.fixture
def make_lake(tmp_path: Path) -> MakeLake:
    """A new table with MemWAL: `make_lake(schema, key, rows)`."""
    numbers = itertools.count(1)

    def make(
        schema: pa.Schema = SCHEMA,
        primary_key: tuple[str, ...] = ("id",),
        rows: pa.Table | None = None,
        *,
        rows_per_file: int = 4,
        enable_stable_row_ids: bool = False,
    ) -> PylanceLake:
        uri = str(tmp_path / f"table-{next(numbers)}")
        lake = PylanceLake(uri, None, open_store(uri))
        made = adopt.create_base(
            uri, schema, primary_key, None, enable_stable_row_ids=enable_stable_row_ids
        )
        adopt.initialize_mem_wal(made, {})
        if rows is not None:
            stored = pa.Table.from_arrays(rows.columns, schema=lake.open_base().dataset.schema)
            lance.write_dataset(stored, uri, mode="append", max_rows_per_file=rows_per_file)
        return lake

    return make


def table(rows: dict[int, str | None]) -> pa.Table:
    """Rows of `SCHEMA`."""
    return pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA)


def content(lake: PylanceLake) -> list[tuple[int, str | None]]:
    """All rows of the latest base, sorted."""
    rows = pa.Table.from_batches(lake.open_base().scan(), lake.open_base().dataset.schema)
    return sorted((row["id"], row["v"]) for row in rows.to_pylist())


def compact_files(lake: PylanceLake, rows: int = 1 << 20) -> None:
    """Rewrite the files of the base, each task in turn."""
    plan = lake.plan_files(target_rows_per_fragment=rows)
    lake.commit_files(plan, [lake.rewrite_files(task) for task in plan.tasks])
