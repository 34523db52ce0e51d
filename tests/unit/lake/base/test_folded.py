"""What a fold and a load leave in the columns of the base, as an outsider may have changed it."""

import json

import lance
import pyarrow as pa
import pytest

from weir.errors import CorruptEntry
from weir.lake.base.folded import NOTE, NUMBER, fold_number, folded_into

SHARD = "00000000-0000-0000-0000-000000000001"


def column_with(tmp_path, name, text):
    dataset = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t"))
    dataset.update_field_metadata({"a": {name: text}})
    return dataset


@pytest.mark.parametrize("text", [json.dumps({SHARD: float("inf")}), "[" * 100_000, "{}}", "7"])
def test_a_note_that_cannot_be_read_is_damage_of_that_column(tmp_path, text):
    dataset = column_with(tmp_path, NOTE, text)
    with pytest.raises(CorruptEntry, match="the note of column 'a'"):
        folded_into(dataset)


@pytest.mark.parametrize("text", ["9" * 5000, "seven", "-1"])
def test_what_is_no_number_of_64_bits_is_no_number_of_a_fold(tmp_path, text):
    assert fold_number(column_with(tmp_path, NUMBER, text)) == 0
