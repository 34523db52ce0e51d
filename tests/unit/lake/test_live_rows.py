"""Rows of a dataset without its deleted ones."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from weir.lake.live_rows import has_dense_deletes, scan_past_deletes


@pytest.mark.parametrize(("gone", "dense"), [("id % 3 > 0", True), ("id = 7", False), ("", False)])
def test_live_rows_are_the_same_past_their_deletes(tmp_path: Path, gone: str, dense: bool) -> None:
    rows = pa.table({"id": range(100), "v": [f"v{i}" for i in range(100)]})
    dataset = lance.write_dataset(rows, str(tmp_path / "t"), max_rows_per_file=40)
    if gone:
        dataset.delete(gone)
    assert has_dense_deletes(dataset) is dense
    middle = [dataset.get_fragment(1)]
    for fragments in (None, middle):
        plain = dataset.scanner(fragments=fragments, with_row_address=True).to_table()
        past = scan_past_deletes(
            dataset, None, fragments=fragments, batch_size=16, with_row_address=True
        )
        assert pa.Table.from_batches(past).to_pylist() == plain.to_pylist()
    parts = [
        batch.column("id").to_pylist()
        for within in ((0, 33), (33, 33), (66, 1 << 40))
        for batch in scan_past_deletes(dataset, ["id"], within=within, batch_size=16)
    ]
    assert [n for part in parts for n in part] == dataset.to_table()["id"].to_pylist()
