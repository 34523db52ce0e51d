"""`WriterConfig` is checked when it is made, so that nothing is written with a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir


@pytest.mark.parametrize("name", ["enable_memtable", "durable_write", "sync_indexed_write"])
@pytest.mark.parametrize("value", ["false", "", 0, 1, None], ids=repr)
def test_a_flag_is_true_or_false(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(weir.InvalidInput, match=rf"WriterConfig\.{name} must be True or False"):
        weir.WriterConfig(**settings)


@pytest.mark.parametrize("value", ["1000", 0, -1, 2.5, True], ids=repr)
def test_a_count_is_a_whole_number_above_zero(value: object) -> None:
    settings: dict[str, Any] = {"max_memtable_rows": value}
    with pytest.raises(weir.InvalidInput, match="max_memtable_rows must be a whole number"):
        weir.WriterConfig(**settings)


@pytest.mark.parametrize("value", [("by_id",), [{"name": "by_id", "column": "id"}], 7], ids=repr)
def test_indexes_are_index_configs(value: object) -> None:
    settings: dict[str, Any] = {"index_configs": value}
    with pytest.raises(weir.InvalidInput, match="index_configs"):
        weir.WriterConfig(**settings)


def test_a_table_keeps_the_settings_it_was_made_with(tmp_path: Path) -> None:
    made = weir.WriterConfig(
        durable_write=False, max_memtable_rows=7, max_memtable_age="2m", fence_ttl=5
    )
    schema = pa.schema([pa.field("id", pa.int64())])
    weir.create(tmp_path / "t", schema, primary_key="id", writer_defaults=made)
    assert weir.open(tmp_path / "t").core.record.writer_defaults == made


@pytest.mark.parametrize("added", [{"later": 1}, {"index_configs": [{"later": 1}]}])
def test_settings_of_a_later_release_are_refused_not_ignored(added: dict[str, object]) -> None:
    record = {**weir.WriterConfig().to_record(), **added}
    with pytest.raises(ValueError, match="later"):
        weir.WriterConfig.from_record(record)
