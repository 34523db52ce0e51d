"""An object that cannot be read is named by its full URI, with advice on what to do."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.records.apps import query_of, take_app

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def made(place: Path) -> weir.Table:
    table = weir.create(place, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "a"} for n in range(3000)])
        writer.flush()
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 1, "v": "b"}])  # stays in the log
    take_app(table.core.store, "etl", "q")
    return table


@pytest.mark.parametrize(
    ("pattern", "use", "advice"),
    [
        ("_versions/*.manifest", lambda t: weir.open(t.uri).count(), "copy of the table"),
        ("_weir/apps/*", lambda t: query_of(t.core.store, "etl"), "copy of the table"),
        ("_weir/table/*", lambda t: weir.open(t.uri), "copy of the table"),
        ("**/wal/**/*.arrow", lambda t: weir.open(t.uri).count(), "copy of the table"),
    ],
)
def test_a_damaged_object_is_named_with_what_to_do(
    tmp_path: Path, pattern: str, use: Callable[[weir.Table], object], advice: str
) -> None:
    table = made(tmp_path / "t")
    found = sorted(path for path in (tmp_path / "t").glob(pattern) if path.is_file())
    assert found, sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    for path in found:
        path.write_bytes(b"junk")
    with pytest.raises(weir.CorruptEntry) as raised:
        use(table)
    # Lance does not say which of its files is damaged, so the table is named.
    named = [table.uri] if pattern.startswith("_versions") else [str(path) for path in found]
    assert any(name in str(raised.value) for name in named), raised.value
    assert advice in str(raised.value)
