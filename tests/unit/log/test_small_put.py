"""Rows of many puts converted together give the same result as each put alone."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from weir.env import Limits
from weir.format.schema import FIELD_ID, table_schema
from weir.log.intake import Intake
from weir.log.small_put import SMALL_PUT_ROWS, as_small_put, shape_together

TYPES = {
    "k": pa.int64(),
    "i": pa.int8(),
    "x": pa.float32(),
    "s": pa.string(),
    "b": pa.binary(),
    "t": pa.timestamp("us", tz="UTC"),
    "n": pa.decimal128(6, 2),
    "d": pa.dictionary(pa.int32(), pa.string()),
    "z": pa.bool_(),
}
SCHEMA = table_schema(
    pa.schema(
        [
            pa.field(name, dtype, name != "k", {FIELD_ID: str(i).encode()})
            for i, (name, dtype) in enumerate(TYPES.items())
        ]
    ),
    ("k",),
    len(TYPES) - 1,
)
VALUES = [
    None, 0, 1, -1, 127, 128, 2**40, 2**63, True, 1.5, 2.0, float("nan"), 1e300, "a", "", "ü" * 3,
    b"raw", b"\xff", Decimal("1.25"), Decimal("1.256"), dt.datetime(2026, 1, 2),  # noqa: DTZ001  as a user may
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(2026, 1, 2), dt.timedelta(seconds=1),
]  # fmt: skip
GOOD = {"k": 1, "i": 3, "x": 0.5, "s": "t", "b": b"u", "z": False, "d": "v"}


def alone(intake, data):
    """What the put gives alone: rows, or an error."""
    try:
        batches = intake.rows(data)
        for batch in batches:
            intake.fit([batch], Limits())
        return pa.Table.from_batches(batches).combine_chunks()
    except Exception as error:
        return type(error), str(error)


def together(intake, puts):
    results = shape_together(intake, [as_small_put(put) for put in puts], Limits())
    return [
        (type(one), str(one))
        if isinstance(one, Exception)
        else pa.Table.from_batches([one.alone()]).combine_chunks()
        for one in results
    ]


def plain(outcome):
    """A comparable form: dictionaries may hold unused values, and NaN differs from NaN."""
    if isinstance(outcome, tuple):
        return outcome
    return outcome.schema, str(outcome.to_pylist())


def draw_row(rng):
    row = dict(GOOD, k=rng.randrange(100))
    for name in rng.sample(sorted(TYPES), rng.randrange(3)):
        row[name] = rng.choice(VALUES)
    for name in rng.sample(sorted(TYPES), rng.randrange(2)):
        row.pop(name, None)
    if rng.random() < 0.1:
        row["_tombstone"] = rng.choice([True, False, None])
    if rng.random() < 0.02:
        row["unknown"] = 1
    return row


@pytest.mark.parametrize("seed", range(60))
def test_together_each_put_is_what_it_is_alone(seed):
    rng = random.Random(seed)
    puts = [[draw_row(rng) for _ in range(rng.choice((1, 1, 1, 3)))] for _ in range(12)]
    if seed % 3 == 0:  # batches among the dicts, with and without an extra column
        for place in (2, 3, 7):
            row = {"k": [rng.randrange(9)], "s": ["batch"]}
            puts[place] = pa.record_batch(row if place < 7 else {**row, "i": [rng.randrange(300)]})
    expected = [alone(Intake(SCHEMA), put) for put in puts]
    assert [plain(one) for one in together(Intake(SCHEMA), puts)] == [plain(e) for e in expected]


def test_good_puts_share_one_batch_and_a_bad_one_costs_it_nothing_but_that():
    puts = [[dict(GOOD, k=number)] for number in range(5)]
    shared = shape_together(Intake(SCHEMA), [as_small_put(put) for put in puts], Limits())
    assert len({id(one.batch) for one in shared}) == 1
    held = Intake(SCHEMA).fit([shared[0].batch], Limits())
    assert held <= sum(one.nbytes for one in shared) < held + len(shared)
    puts[2] = [dict(GOOD, i=300)]
    results = shape_together(Intake(SCHEMA), [as_small_put(put) for put in puts], Limits())
    assert [isinstance(one, Exception) for one in results] == [False, False, True, False, False]


@pytest.mark.parametrize(
    "data",
    [
        [],
        [dict(GOOD)] * (SMALL_PUT_ROWS + 1),
        [{"s": "x" * 5000}],
        [{"s": ["a", "list"]}],
        [type("Row", (dict,), {})(GOOD)],
        pa.table({"k": [1]}),
        pa.record_batch({"k": list(range(SMALL_PUT_ROWS + 1))}),
        "no rows",
    ],
)
def test_what_is_large_or_runs_code_of_a_users_is_shaped_by_its_putter(data):
    assert as_small_put(data) is None
