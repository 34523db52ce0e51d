"""L-8: another program renamed or dropped the column that an append-only table is sharded by.

Reads and upkeep go on, and the table can be resharded by another column, as the refusal of a put
says.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir.format.sharding import Sharding

SCHEMA = pa.schema([("uid", pa.int64()), ("v", pa.string())])
SHARDINGS: dict[str, Sharding] = {
    "bucket": weir.Bucket("uid", 2),
    "identity": weir.Identity("uid"),
}
STRANGERS: dict[str, Callable[[lance.LanceDataset], object]] = {
    "dropped": lambda dataset: dataset.drop_columns(["uid"]),
    "renamed": lambda dataset: dataset.alter_columns({"path": "uid", "name": "user"}),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_l8_a_table_without_its_shard_column_is_kept_and_resharded(
    tmp_path: Path, sharding: str, stranger: str
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=SHARDINGS[sharding])
    with table.writer() as writer:
        writer.put([{"uid": number, "v": f"v{number}"} for number in (1, 2, 200, -1)])
    STRANGERS[stranger](lance.dataset(table.uri))
    want = Counter(f"v{number}" for number in (1, 2, 200, -1))

    def seen() -> Counter[str]:
        return Counter(weir.open(table.uri).scan(["v"]).to_table()["v"].to_pylist())

    assert seen() == want
    weir.open(table.uri).stats()
    weir.open(table.uri).checkpoint("all", name="kept")
    assert weir.open(table.uri).compact().rows_written == 4
    assert weir.open(table.uri).gc(min_age=0).ok
    copy = weir.open(table.uri).clone(str(tmp_path / "copy"), "kept")
    assert copy.count() == 4
    weir.open(table.uri).reshard(weir.Unsharded())
    with weir.open(table.uri).writer() as writer:
        writer.put([{"v": "new"}])
    assert seen() == want + Counter(["new"])
    weir.open(table.uri).compact()
    assert seen() == want + Counter(["new"])
