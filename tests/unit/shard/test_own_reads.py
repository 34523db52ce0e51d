"""Reads of a writer's own rows: the fast path of a hot key returns the same as the slow path."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from weir.errors import InvalidInput
from weir.shard.own_reads import OwnReads

VALUES = {
    "whole": (pa.int64(), list(range(8))),
    "short": (pa.uint8(), list(range(8))),
    "text": (pa.utf8(), [f"k{n}" for n in range(8)]),
    "bytes": (pa.large_binary(), [b"k%d" % n for n in range(8)]),
    "flag": (pa.bool_(), [True, False]),
}


def make(where: Path, key: pa.DataType, **settings: Any) -> weir.Table:
    inner = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.utf8()))])
    schema = pa.schema(
        [pa.field("id", key, nullable=False), ("v", pa.int64()), pa.field("inner", inner)]
    )
    return weir.create(str(where / "table"), schema, primary_key="id", **settings)


@pytest.mark.parametrize("kind", VALUES)
def test_m1_a_hot_key_is_read_as_any_other(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, keys = VALUES[kind]
    rng = random.Random(kind)
    taken = {"short": 0, "long": 0}
    hot = OwnReads._hot

    def counted(self: OwnReads, keys: Any, columns: Any) -> pa.Table | None:
        found = hot(self, keys, columns)
        taken["long" if found is None else "short"] += 1
        return found

    with make(tmp_path, dtype).shards()[0].writer() as writer:
        for step in range(60):
            key = rng.choice(keys)
            if rng.random() < 0.2:
                writer.delete([key])
            else:
                inner = rng.choice([None, {"a": step, "b": ["x"] * (step % 3)}])
                writer.put([{"id": key, "v": step, "inner": inner}])
            if step in (20, 40):
                writer.flush()
            asked = [rng.choice(keys) for _ in range(rng.randint(1, 4))]
            columns = rng.choice([None, ["v"], ["inner", "id"]])
            monkeypatch.setattr(OwnReads, "_hot", counted)
            short = writer.get(asked, columns)
            monkeypatch.setattr(OwnReads, "_hot", lambda *_: None)
            assert short.equals(writer.get(asked, columns), check_metadata=True)
    assert taken["long"] > 5
    assert (taken["short"] > 5) == (kind != "flag")


def test_m9_a_key_of_another_type_is_no_key_that_is_equal_to_it(tmp_path: Path) -> None:
    with make(tmp_path, pa.int64()).shards()[0].writer() as writer:
        writer.put([{"id": 1, "v": 1}])
        assert writer.get([1]).num_rows == writer.get(1).num_rows == 1
        for wrong in (True, "1", None):
            with pytest.raises(InvalidInput):
                writer.get([wrong])
        with pytest.raises(InvalidInput):
            writer.get([1], columns=["nothing"])


def test_l11_a_hot_row_that_has_expired_is_not_read(tmp_path: Path) -> None:
    inner = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ts", pa.timestamp("us"))])
    table = weir.create(
        str(tmp_path / "t"), inner, primary_key="id", expire=weir.Expire("ts", after="1d")
    )
    with table.shards()[0].writer() as writer:
        writer.put([{"id": 1, "ts": dt.datetime(2001, 1, 1)}])  # noqa: DTZ001  it has no zone
        for _ in range(2):  # the first get learns the rule
            assert writer.get([1]).num_rows == 0
        assert writer.update([{"id": 1}], missing="skip").skipped == 1
