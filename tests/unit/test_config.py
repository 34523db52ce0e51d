"""`WriterConfig` is checked when it is made, so that nothing is written with a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

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


@pytest.mark.parametrize("given", [{}, {"durable_write": False}, "fast"], ids=repr)
def test_what_is_no_config_is_refused_before_anything_is_written(
    tmp_path: Path, given: Any
) -> None:
    """A dict of settings left the half of a table, and an empty one was ignored."""
    schema = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(weir.InvalidInput, match="WriterConfig"):
        weir.create(tmp_path / "t", schema, primary_key="id", writer_defaults=given)
    assert not (tmp_path / "t").exists()
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    with pytest.raises(weir.InvalidInput, match="WriterConfig"):
        table.writer(given)
    shard = table.shards()[0]
    with pytest.raises(weir.InvalidInput, match="WriterConfig"):
        shard.writer(given)
    assert shard.manifest().writer_epoch == 0


def test_what_is_no_rule_of_expiry_is_refused(tmp_path: Path) -> None:
    columns, given = {"id": "int64", "ts": "timestamp[us]"}, cast("Any", "30d")
    with pytest.raises(weir.InvalidInput, match=r"weir\.Expire"):
        weir.create(tmp_path / "t", columns, expire=given)
    table = weir.create(tmp_path / "t", columns)
    with pytest.raises(weir.InvalidInput, match=r"weir\.Expire"):
        table.set_expire(given)


def test_an_engine_that_is_none_is_refused_and_not_taken_for_this_process(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", {"id": "int64"})
    spark = cast("Any", "spark")
    with pytest.raises(weir.InvalidInput, match=r"weir\.spark\.compact"):
        table.compact(engine=spark)
