"""A column that Lance, or the log, cannot hold is refused before anything is written."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir


@pytest.mark.parametrize(
    "dtype",
    [
        pa.decimal32(5, 2),
        pa.decimal64(5, 2),
        pa.month_day_nano_interval(),
        pa.list_view(pa.int32()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.struct([("x", pa.decimal32(5, 2))]),
    ],
    ids=str,
)
def test_a_type_that_lance_has_not_is_refused_and_leaves_no_folder(
    tmp_path: Path, dtype: pa.DataType
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("odd", dtype)])
    with pytest.raises(weir.InvalidInput, match="column 'odd': Lance has no type"):
        weir.create(tmp_path / "t", schema, primary_key="id")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "blob",
    [
        lance.blob_field("odd"),
        pa.field("odd", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        pa.field("odd", pa.struct([lance.blob_field("inner")])),
    ],
    ids=["field of lance", "by metadata", "nested"],
)
def test_a_blob_is_refused_before_a_row_of_it_is_acknowledged(
    tmp_path: Path, blob: pa.Field
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), blob])
    with pytest.raises(weir.InvalidInput, match="column 'odd' is a Lance blob"):
        weir.create(tmp_path / "t", schema, primary_key="id")
    assert not (tmp_path / "t").exists()
