"""The page of types is correct: each type is tried as a value, a key and a bucket, on all levels.

`python -m tests.docs.test_types` prints the table for docs/reference/types.md.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
import pytest

import weir
from tests.docs.blocks import ROOT
from weir.format.keys import is_key_type
from weir.spark.types import spark_schema

PAGE = ROOT / "docs" / "reference" / "types.md"
NOW = datetime(2026, 11, 16, 2, 3, 4, 500)  # noqa: DTZ001
VALUES: list[tuple[pa.DataType, object]] = [
    (pa.bool_(), True),
    (pa.int8(), -8),
    (pa.int16(), -16),
    (pa.int32(), -32),
    (pa.int64(), -(2**63)),
    (pa.uint8(), 8),
    (pa.uint16(), 16),
    (pa.uint32(), 32),
    (pa.uint64(), 2**64 - 1),
    (pa.float16(), 0.5),
    (pa.float32(), 0.25),
    (pa.float64(), 0.1),
    (pa.string(), "täxt"),
    (pa.large_string(), "large"),
    (pa.string_view(), "view"),
    (pa.binary(), b"\x00b"),
    (pa.large_binary(), b"large"),
    (pa.binary(4), b"four"),
    (pa.uuid(), UUID(int=7)),
    (pa.date32(), date(2026, 11, 16)),
    (pa.date64(), date(2026, 11, 16)),
    (pa.time32("s"), time(1, 2, 3)),
    (pa.time64("us"), time(1, 2, 3, 4)),
    (pa.timestamp("s"), NOW.replace(microsecond=0)),
    (pa.timestamp("us"), NOW),
    (pa.timestamp("us", "UTC"), NOW.replace(tzinfo=UTC)),
    (pa.timestamp("ns"), NOW),
    (pa.duration("us"), timedelta(seconds=1, microseconds=5)),
    (pa.decimal128(20, 2), Decimal("73.25")),
    (pa.decimal256(50, 2), Decimal("73.25")),
    (pa.dictionary(pa.int32(), pa.string()), "word"),
    (pa.list_(pa.int32()), [1, None]),
    (pa.large_list(pa.string()), ["a", "b"]),
    (pa.list_(pa.float32(), 2), [0.5, 0.25]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *(pa.field(f"c{n}", dtype) for n, (dtype, _) in enumerate(VALUES)),
    ]
)
ROW = {"id": 1, **{f"c{n}": value for n, (_, value) in enumerate(VALUES)}}
LEVELS = ("log", "SSTable", "base", "pylance")


def levels(place: Path) -> dict[str, dict[str, object]]:
    """One row with all types, as each level returns it."""
    table = weir.create(place, SCHEMA, primary_key="id")
    found = {}
    with table.writer() as writer:
        writer.put([ROW])
        found["log"] = table.scan().to_table().to_pylist()[0]
        writer.flush()
    found["SSTable"] = table.scan(freshness="flushed").to_table().to_pylist()[0]
    table.compact()
    found["base"] = table.scan(freshness="base").to_table().to_pylist()[0]
    found["pylance"] = lance.dataset(str(place)).to_table().to_pylist()[0]
    return found


def allowed(place: Path, dtype: pa.DataType, value: object, kind: str) -> bool:
    """Whether that column can be a table's key or sharding column; tried on a table that is used.

    A key is put twice, read, deleted and folded. If the type cannot be a key, the table that is
    sharded by it is append-only.
    """
    schema = pa.schema([pa.field("k", dtype, nullable=False), pa.field("x", pa.int64())])
    if kind == "spark":
        try:
            spark_schema(schema)
        except weir.InvalidInput:
            return False
        return True
    sharding = {"bucket": weir.Bucket("k", 4), "identity": weir.Identity("k")}.get(kind)
    key = "k" if kind == "key" or is_key_type(dtype) else None
    try:
        table = weir.create(
            place / f"{kind}-{hash(str(dtype))}", schema, primary_key=key, sharding=sharding
        )
    except weir.InvalidInput:
        return False
    with table.writer() as writer:
        writer.put([{"k": value, "x": 1}])
        if key:
            writer.put([{"k": value, "x": 2}])
            assert table.get([value]).to_pylist() == [{"k": value, "x": 2}]
            writer.delete([value])
            assert table.get([value]).num_rows == 0
            writer.put([{"k": value, "x": 1}])
    table.compact()
    assert table.scan().to_table().to_pylist() == [{"k": value, "x": 1}]
    if kind == "key":
        assert table.get([value]).to_pylist() == [{"k": value, "x": 1}]
        with table.writer() as writer:
            writer.delete([value])
        table.compact()
        assert table.count() == 0
    return True


def lines(place: Path, found: dict[str, dict[str, object]]) -> list[str]:
    rows = []
    for n, (dtype, value) in enumerate(VALUES):
        exact = ["yes" if found[level][f"c{n}"] == value else "**no**" for level in LEVELS]
        kinds = ("key", "bucket", "identity", "spark")
        may = ["yes" if allowed(place, dtype, value, kind) else "" for kind in kinds]
        name = str(dtype).replace("|", "\\|")
        rows.append(f"| `{name}` | {' | '.join(exact)} | {' | '.join(may)} |")
    return rows


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    return levels(tmp_path_factory.mktemp("types") / "t")


@pytest.mark.parametrize("level", LEVELS)
def test_every_type_comes_back_as_it_was_put(found, level: str) -> None:
    assert found[level] == ROW


def test_the_page_of_types_says_what_happens(found, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [line for line in lines(tmp_path, found) if line not in text.splitlines()] == []


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(lines(Path(folder), levels(Path(folder) / "t"))))
