"""A table is not made inside another one, which would collect its files as its own leftovers."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.stores import StoreKind

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def enable(_: weir.Table, place: str) -> object:
    lance.write_dataset(SCHEMA.empty_table(), place, mode="overwrite")
    return weir.enable(place)


MAKE: dict[str, Callable[[weir.Table, str], object]] = {
    "create": lambda _, place: weir.create(place, SCHEMA),
    "enable": enable,
    "clone": lambda table, place: table.clone(place),
    "deep clone": lambda table, place: table.clone(place, deep=True),
}
BELOW = ("data/x.lance", "_mem_wal/x", "_weir/deep/er", "x")


@pytest.mark.parametrize("outer", ["weir", "lance"])
@pytest.mark.parametrize("how", MAKE)
def test_s8_no_table_begins_inside_another(tmp_path: Path, how: str, outer: str) -> None:
    source = weir.create(str(tmp_path / "source"), SCHEMA)
    place = tmp_path / "outer"
    if outer == "weir":
        weir.create(str(place), SCHEMA)
    else:
        lance.write_dataset(SCHEMA.empty_table(), place)
    (tmp_path / "link").symlink_to(place)
    for below in BELOW:
        for within in (place / below, tmp_path / "link" / below):
            with pytest.raises(weir.InvalidInput, match=f"is inside the table {place},"):
                MAKE[how](source, str(within))
            assert how == "enable" or not within.exists()
    assert not source.checkpoints()


@pytest.mark.parametrize("below", ["data/x", "_indices/deep/er", "_weir/x", "_mem_wal/x"])
@pytest.mark.parametrize("how", MAKE)
def test_s8_no_table_begins_around_another(tmp_path: Path, how: str, below: str) -> None:
    """Lance would delete the inner one's files as its own leftovers."""
    source = weir.create(str(tmp_path / "source"), SCHEMA)
    place = tmp_path / "outer"
    inner = weir.create(str(place / below), SCHEMA)
    with pytest.raises(weir.InvalidInput, match=f"hold another one or its log, {inner.uri}, and"):
        MAKE[how](source, str(place))
    assert how == "enable" or {path.name for path in place.iterdir()} == {below.partition("/")[0]}
    assert not source.checkpoints()


@pytest.mark.parametrize("below", ["data", "_weir/x", "_mem_wal/x", "_mem_wal"])
@pytest.mark.parametrize("how", MAKE)
def test_s8_no_table_begins_around_a_log(tmp_path: Path, how: str, below: str) -> None:
    """A drop of the table would delete acknowledged rows of another one."""
    source = weir.create(str(tmp_path / "source"), SCHEMA)
    place = tmp_path / "outer"
    weir.create(str(tmp_path / "inner"), SCHEMA, wal_uri=str(place / below))
    with pytest.raises(weir.InvalidInput, match=f"hold another one or its log, {place / below}/"):
        MAKE[how](source, str(place))


def test_s8_no_table_begins_inside_another_on_any_store(
    table_uri: str, store_kind: StoreKind
) -> None:
    options = store_kind.storage_options
    table = weir.create(table_uri, SCHEMA, storage_options=options)
    inside = f"{table_uri}/data/x"
    with pytest.raises(weir.InvalidInput, match="is inside the table"):
        weir.create(inside, SCHEMA, storage_options=options)
    with pytest.raises(weir.InvalidInput, match="is inside the table"):
        table.clone(inside)
    assert not weir.exists(inside, storage_options=options)


@pytest.mark.parametrize("below", ["", "/data", "/_weir/x"])
def test_s8_no_log_begins_inside_its_own_table(tmp_path: Path, below: str) -> None:
    source = weir.create(str(tmp_path / "source"), SCHEMA)
    place = str(tmp_path / "t")
    with pytest.raises(weir.InvalidInput, match="leave it out"):
        weir.create(place, SCHEMA, wal_uri=place + below)
    with pytest.raises(weir.InvalidInput, match="leave it out"):
        source.clone(place, wal_uri=place + below)
    assert not Path(place).exists()
