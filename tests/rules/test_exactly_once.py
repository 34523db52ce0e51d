"""P-2 through a reshard: batches that were staged, or written in part, under the old routing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.support.spark import SCHEMA, in_weir, make_table, once
from weir.spark.layout import Layout
from weir.spark.places import Place
from weir.spark.shard_sink import Token
from weir.spark.sink import Message, Sink

ROWS = {k: f"v{k}" for k in range(40)}
TOKEN = Token("app", 3)


def sink_of(table: weir.Table) -> Sink:
    return Sink(Place(table.uri), None, None, 1 << 20, "app", 3)


def stage(sink: Sink, rows: dict[int, str], token: Token = TOKEN) -> Message:
    batch = pa.RecordBatch.from_pylist([{"id": k, "v": v} for k, v in rows.items()], schema=SCHEMA)
    return sink.write(iter([batch]), token)


@pytest.mark.parametrize("old", [weir.Bucket("id", 3), weir.Unsharded(), weir.Identity("id")])
def test_p2_a_batch_in_part_in_before_a_reshard_is_completed_after_it(
    tmp_path: Path, old: weir.Bucket | weir.Unsharded | weir.Identity
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=old)
    sink = sink_of(table)
    message = stage(sink, ROWS)
    # The driver dies after all shards but the last.
    some = message.staged[:-1] or message.staged
    sink.publish([replace(message, staged=some)], TOKEN)
    partly = in_weir(table).total()
    assert partly == sum(part.rows for part in some)
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    for _ in range(2):
        sink = sink_of(table)
        sink.publish([stage(sink, ROWS)], TOKEN)
        assert in_weir(table) == once(ROWS)
    # After a second reshard a new batch is taken, and a repeated one still changes nothing.
    weir.open(table.uri).reshard(weir.Bucket("id", 2))
    for token in (TOKEN, Token("app", 4), Token("app", 4)):
        sink = sink_of(table)
        rows = ROWS if token == TOKEN else {100: "next"}
        sink.publish([stage(sink, rows, token)], token)
    assert in_weir(table) == once(ROWS | {100: "next"})


def test_p2_rows_staged_before_a_reshard_find_their_new_shards(tmp_path: Path) -> None:
    table = make_table(tmp_path, keyed=False)
    sink = sink_of(table)
    message = stage(sink, ROWS)
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    sink.publish([message], TOKEN)
    assert in_weir(table) == once(ROWS)
    assert not list(table.core.store.list("_weir/staging"))
    again = sink_of(table)
    again.publish([stage(again, ROWS)], TOKEN)
    assert in_weir(table) == once(ROWS)


def test_p1_a_task_laid_out_for_the_old_routing_stops(tmp_path: Path) -> None:
    table = make_table(tmp_path, keyed=False)
    sink = replace(sink_of(table), layout=Layout("id", 3))
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    with pytest.raises(weir.InvalidInput, match="does not fit the table's sharding"):
        stage(sink, ROWS)
    assert in_weir(table).total() == 0


def test_a_table_made_anew_at_the_same_place_is_another_table(tmp_path: Path) -> None:
    where = tmp_path / "t"
    place = Place(str(where))
    for number in range(2):
        table = weir.create(str(where), SCHEMA, primary_key="id")
        sink = Sink(place, None, None, 1 << 20, "app", 3)
        sink.publish([stage(sink, {number: "x"})], TOKEN)
        assert in_weir(table) == once({number: "x"})
        assert place.current().core.record.table_id == table.core.record.table_id
        shutil.rmtree(where)
