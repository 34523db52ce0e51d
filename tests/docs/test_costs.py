"""The rounds and requests that docs/guides/operations.md tells for a verb over many shards."""

import re
from contextlib import ExitStack

import pyarrow as pa
import pytest

import weir
from tests.docs.blocks import ROOT
from tests.support.tables import count_requests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
FEW, MANY = 4, 12
PAGE = (ROOT / "docs/guides/operations.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.+?) \| (\d+) \((\d+) requests\).*? \| (\d+)", re.MULTILINE)


def rows(table):
    return [{"id": i, "v": 0} for i in range(40 * table.sharding.num)]


def put(table, stack):
    stack.enter_context(table.writer()).put(rows(table))


def fill(table, _stack):
    with table.writer() as writer:
        writer.put(rows(table))


def fold(table, stack):
    fill(table, stack)
    table.compact()


def collect(table, stack):
    fold(table, stack)
    table.gc(min_age=0)


CASES = {
    "the first durable read of a handle": (put, lambda table, _: table.scan().to_table()),
    "`put`, opening the shard": (lambda *_: None, put),
    "`stats`": (put, lambda table, _: table.stats()),
    "`checkpoint`": (put, lambda table, _: table.checkpoint()),
    "`compact`": (fill, lambda table, _: table.compact()),
    "`gc`, nothing to do": (collect, lambda table, _: table.gc()),
    "`gc`, with entries, versions and SSTables to delete": (
        fold,
        lambda table, _: table.gc(min_age=0),
    ),
}
"""What is done before, with its writer still open after `put`; and the verb itself."""


def cost(folder, shards, case):
    """The rounds and requests of one verb through a new handle."""
    prepare, run = CASES[case]
    place = str(folder / f"{shards}")
    made = weir.create(place, SCHEMA, primary_key="id", sharding=weir.Bucket("id", shards))
    with ExitStack() as stack:
        prepare(made, stack)
        table = weir.open(place)
        counting = count_requests(table)
        run(table, stack)
        return sum(counting.calls.values()), counting.requests


@pytest.mark.parametrize("case", CASES)
def test_a_verb_takes_no_more_rounds_and_requests_than_the_page_says(case, tmp_path):
    told = {name: tuple(map(int, figures)) for name, *figures in ROW.findall(PAGE)}
    few, many = (cost(tmp_path, shards, case) for shards in (FEW, MANY))
    rounds, requests = ((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True))
    found = rounds, requests, few[0] - FEW * rounds
    assert all(a <= b for a, b in zip(found, told[case], strict=True)), f"{found}: {told[case]}"
    assert all(2 * a >= b for a, b in zip(found, told[case], strict=True)), (
        f"{found} is far less than {told[case]}"
    )
