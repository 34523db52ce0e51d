"""L-3 with real predicates: a merged scan under a filter is the filter over the merged scan.

The reference is DataFusion for SQL text and pyarrow itself for expressions, over the same scan
without a filter.
"""

import datetime as dt
import decimal

import datafusion
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir

STAMP = dt.datetime(2026, 1, 1)  # noqa: DTZ001  a column without a time zone
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.int64()),
        ("s", pa.utf8()),
        ("t", pa.timestamp("us")),
        ("tz", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        (
            "p",
            pa.struct([("a", pa.int64()), ("b", pa.utf8()), ("q", pa.struct([("z", pa.int32())]))]),
        ),
        ("l", pa.list_(pa.int64())),
        ("f", pa.float64()),
        ("ok", pa.bool_()),
        ("dec", pa.decimal128(10, 2)),
        ("bin", pa.binary()),
        ("u", pa.uint32()),
        ("odd name", pa.int64()),
    ]
)
TEXTS = ["apple", "banana", "a%b", "Cherry", "a_b", "it's", "日本"]


def row(i, version):
    """A row whose columns all depend on the version, so old versions pass other filters."""
    k = (i * 7 + version * 3) % 11
    if k == 0:
        return dict.fromkeys(SCHEMA.names) | {"id": i}
    return {
        "id": i,
        "x": k,
        "s": TEXTS[k % 7],
        "t": STAMP + dt.timedelta(hours=k),
        "tz": (STAMP + dt.timedelta(hours=k)).replace(tzinfo=dt.UTC),
        "d": dt.date(2026, 1, 1 + k),
        "p": {"a": k if k % 3 else None, "b": "pq"[k % 2], "q": {"z": k}},
        "l": list(range(k % 4)),
        "f": k / 2,
        "ok": k % 2 == 0,
        "dec": decimal.Decimal(k) / 4,
        "bin": bytes([k]),
        "u": k,
        "odd name": k,
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A base, an SSTable and a log, each replacing and deleting rows of the levels below."""
    uri = str(tmp_path_factory.mktemp("filters") / "t")
    table = weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([row(i, 0) for i in range(30)])
        writer.flush()
        table.compact()
        writer.put([row(i, 1) for i in range(10, 24)])
        writer.delete([1, 2, 15])
        writer.flush()
        writer.put([row(i, 2) for i in range(20, 36)])
        writer.delete([3, 16, 21])
        yield weir.open(uri)


@pytest.fixture(scope="module")
def unfiltered(table):
    """The scan without a filter at each freshness, in memory and in DataFusion."""
    rows = {level: table.scan(freshness=level).to_table() for level in LEVELS}
    assert [rows[level].num_rows for level in LEVELS] == [30, 27, 30]
    context = datafusion.SessionContext()
    for level, scanned in rows.items():
        # DataFusion reads the child buffers below a null struct: make the children null too.
        found = scanned.combine_chunks()
        at, structs = SCHEMA.get_field_index("p"), found["p"].chunk(0)
        fields = list(structs.type)
        nulls = pa.StructArray.from_arrays(structs.flatten(), fields=fields, mask=structs.is_null())
        plain = found.set_column(at, SCHEMA.field("p"), nulls)
        context.register_record_batches(level, [plain.to_batches()])
    return rows, context


PROJECTIONS = {"base": [["id"]], "flushed": [["s", "id"]], "durable": [None, ["id"]]}
LEVELS = tuple(PROJECTIONS)
SQL = [
    "t > timestamp '2026-01-01 05:00:00'",
    "t between timestamp '2026-01-01 02:00:00' and timestamp '2026-01-01 06:00:00'",
    "tz < timestamp '2026-01-01 05:00:00'",
    "d = date '2026-01-04' or t is null",
    "date_part('hour', t) = 3",
    "date_trunc('day', t) = timestamp '2026-01-01 00:00:00' and x > 8",
    "p['a'] > 4",
    "p['a'] is null",
    "p['b'] = 'p' or p['a'] = 3",
    "p['q']['z'] > 3",
    "p is null",
    "p['a'] + x > 7",
    "length(s) > 5",
    "lower(s) like 'c%'",
    "abs(x - 5) < 2",
    "coalesce(x, -1) = -1",
    "concat(s, 'x') = 'applex'",
    "array_has(l, 2)",
    "regexp_like(s, '^a')",
    "cast(x as string) = '4'",
    "s like 'a%'",
    "s like 'a\\_b'",
    "s not like 'a%'",
    "s ilike 'CH%'",
    "s like '%n%' and x > 2",
    "s = 'it''s'",
    "s = '日本' or s like '日%'",
    "x in (1, 2, 3)",
    "x not in (1, 2, 3)",
    "x in (null, 3)",
    "s in ('apple', 'it''s')",
    "x is null",
    "x is not null and x <> 3",
    "not (x > 3)",
    "x between 2 and 5",
    "ok",
    "not ok",
    "ok is null",
    "f > 2.5",
    "bin = X'03'",
    "u > 3",
    "x = u",
    "id % 3 = 1",
    "true",
    "false",
]
FIELD = pc.field
EXPRESSIONS = [
    FIELD("x") > 3,
    FIELD("t") > pa.scalar(STAMP + dt.timedelta(hours=4), pa.timestamp("us")),
    FIELD("tz") > pa.scalar(STAMP + dt.timedelta(hours=4), pa.timestamp("us", "UTC")),
    FIELD("d") == dt.date(2026, 1, 4),
    FIELD("p", "a") > 4,
    FIELD("p", "q", "z") > 4,
    FIELD("p").is_null(),
    FIELD("s").isin(["apple", "it's"]),
    FIELD("x").isin([1, 2]),
    FIELD("x").is_null(),
    FIELD("x").is_valid(),
    ~(FIELD("x") > 3),
    (FIELD("x") > 3) & (FIELD("s") == "apple"),
    (FIELD("x") > 8) | (FIELD("s") == "apple"),
    pc.starts_with(FIELD("s"), "a"),
    pc.match_substring(FIELD("s"), "an"),
    pc.match_like(FIELD("s"), "a%"),
    pc.utf8_upper(FIELD("s")) == "APPLE",
    pc.utf8_length(FIELD("s")) > 5,
    pc.hour(FIELD("t")) == 3,
    FIELD("ok"),
    FIELD("f") > 2.5,
    FIELD("dec") > decimal.Decimal("1.25"),
    FIELD("bin") == b"\x03",
    FIELD("u") > 3,
    FIELD("odd name") == 3,
    FIELD("x") + FIELD("id") > 20,
    FIELD("x").cast("string") == "4",
    pc.scalar(True),
]


def check(table, predicate, level, wanted):
    for columns in PROJECTIONS[level]:
        scan = table.scan(columns=columns, filter=predicate, freshness=level)
        assert sorted(scan.to_table()["id"].to_pylist()) == wanted, (level, columns)
    assert scan.count() == len(wanted), level
    if level != "flushed":
        some = table.scan(filter=predicate, freshness=level, limit=3).to_table()
        assert some.num_rows == min(3, len(wanted))
        assert set(some["id"].to_pylist()) <= set(wanted)


@pytest.mark.parametrize("predicate", SQL)
def test_l3_sql_over_merged_levels_is_sql_over_the_rows(table, unfiltered, predicate):
    _, context = unfiltered
    for level in LEVELS:
        found = context.sql(f"select id from {level} where {predicate} order by id")
        check(table, predicate, level, found.to_arrow_table()["id"].to_pylist())


@pytest.mark.parametrize("predicate", EXPRESSIONS, ids=str)
def test_l3_an_expression_over_merged_levels_is_pyarrows_over_the_rows(
    table, unfiltered, predicate
):
    rows, _ = unfiltered
    for level in LEVELS:
        check(table, predicate, level, sorted(rows[level].filter(predicate)["id"].to_pylist()))


@pytest.mark.parametrize("predicate", ["`odd name` = 3", "p.a = 4", "X = 4"])
def test_l3_names_as_lance_writes_them(table, unfiltered, predicate):
    rows, _ = unfiltered
    column = {"`": "odd name", "p": "p", "X": "x"}[predicate[0]]
    for level in LEVELS:
        wanted = [
            r["id"]
            for r in rows[level].to_pylist()
            if (r["p"] and r["p"]["a"] if column == "p" else r[column]) == int(predicate[-1])
        ]
        check(table, predicate, level, sorted(wanted))


@pytest.mark.parametrize(
    "predicate",
    ["1 / (x - x) > 0", "cast(s as int) = 1", "cast(concat(s, ' not found') as int) > 0"],
)
def test_l3_a_filter_without_a_value_for_some_row_is_the_callers_error(table, predicate):
    for level in LEVELS:
        scan = table.scan(filter=predicate, freshness=level)
        for read in (scan.to_table, scan.count):
            with pytest.raises(weir.InvalidInput, match=r"(?i)divide by zero|cannot cast"):
                read()


def test_an_expression_with_a_function_that_is_not_there_is_the_callers_error(table):
    """pyarrow's `and_` makes an expression of a function that it does not have."""
    for level in LEVELS:
        with pytest.raises(weir.InvalidInput, match="and_"):
            table.count(pc.and_(FIELD("x") > 3, FIELD("ok")), freshness=level)


@pytest.mark.parametrize("predicate", ["nothing > 3", FIELD("nothing") > 3, "x >", "substr(s"])
def test_a_filter_that_makes_no_sense_is_the_callers_error(table, predicate):
    for level in LEVELS:
        with pytest.raises(weir.InvalidInput, match=r"nothing|x >|substr"):
            table.scan(filter=predicate, freshness=level).to_table()


def test_rows_with_a_struct_in_a_struct_can_be_flushed_folded_and_filtered(tmp_path):
    """arrow-rs panics on a slice of such a column, and routing produces slices."""
    schema = pa.schema([("id", pa.int64()), SCHEMA.field("p")])
    uri = str(tmp_path / "t")
    table = weir.create(uri, schema, primary_key="id", sharding=weir.Bucket("id", 2))
    rows = [{"id": i, "p": {"a": i, "b": "b", "q": {"z": i}}} for i in range(30)]
    with table.writer() as writer:
        writer.put(rows)
        assert table.scan(filter="p.q.z >= 20").count() == 10
        writer.flush()
    table.compact()
    assert sorted(table.scan().to_table().to_pylist(), key=lambda r: r["id"]) == rows


def test_explain_says_who_filters(table):
    assert "pushed into Lance" in table.scan(filter="x > 3").explain()
    assert "pushed into Lance" in table.scan(filter=FIELD("x") > 3).explain()
    assert "by pyarrow" in table.scan(filter=FIELD("p", "a") > 3).explain()
    assert "filter    none\n" in table.scan().explain()


WIDE = {
    "u8": (pa.uint8(), [1, 2, None]),
    "u64": (pa.uint64(), [1, 2**63, None]),
    "ls": (pa.large_string(), ["a", "b", None]),
    "lb": (pa.large_binary(), [b"a", b"b", None]),
    "t32": (pa.time32("ms"), [dt.time(1), dt.time(2), None]),
    "t64": (pa.time64("us"), [dt.time(1), dt.time(2, 3, 4, 5), None]),
    "n64": (pa.time64("ns"), [dt.time(1), dt.time(2), None]),
    "d64": (pa.date64(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]),
}


@pytest.fixture(scope="module", params=["log", "SSTable", "base"])
def wide(request, tmp_path_factory):
    """A table with columns of types that Substrait has no name for, at each level."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), *((n, t) for n, (t, _) in WIDE.items())]
    )
    table = weir.create(str(tmp_path_factory.mktemp("wide") / "t"), schema, primary_key="id")
    columns = {name: pa.array(values, dtype) for name, (dtype, values) in WIDE.items()}
    with table.writer() as writer:
        writer.put(pa.table({"id": pa.array(range(3)), **columns}, schema=schema))
        if request.param != "log":
            writer.flush()
        if request.param == "base":
            table.compact()
        yield weir.open(table.uri)


@pytest.mark.parametrize("name", WIDE)
def test_l3_expressions_over_types_that_cannot_be_sent_are_pyarrows(wide, name):
    dtype, values = WIDE[name]
    rows = wide.scan().to_table()
    for expression in (
        FIELD(name) == pa.scalar(values[0], dtype),
        FIELD(name) >= pa.scalar(values[1], dtype),
        FIELD(name).is_null(),
        FIELD(name).isin(pa.array(values[1:2], dtype)),
        (FIELD(name) == pa.scalar(values[0], dtype)) | (FIELD("id") == 2),
    ):
        expected = rows.filter(expression)
        assert wide.count(expression) == expected.num_rows > 0
        assert wide.scan(filter=expression).to_table().sort_by("id") == expected.sort_by("id")


@pytest.mark.parametrize(
    ("name", "text"),
    [("u8", "1"), ("u64", "1"), ("ls", "'a'"), ("lb", "'a'::BLOB"), ("t64", "TIME '01:00:00'")],
)
def test_l3_duckdb_filters_a_dataset_of_such_types(wide, name, text):
    rows = wide.scan().to_dataset()  # noqa: F841  found by its name
    assert duckdb.sql(f"SELECT id FROM rows WHERE {name} = {text}").fetchall() == [(0,)]


BESIDE = [
    pa.time64("us"),
    pa.duration("us"),
    pa.decimal256(50, 2),
    pa.large_list(pa.string()),
    pa.list_(pa.large_string()),
    pa.struct([("x", pa.uint32())]),
    pa.map_(pa.string(), pa.list_(pa.float32(), 2)),
]


@pytest.mark.parametrize("dtype", BESIDE, ids=str)
def test_l3_expressions_are_sent_beside_columns_that_lance_has_no_name_for(tmp_path, dtype):
    """pylance describes every column to Lance, also those that the filter does not name."""
    schema = pa.schema(
        [("beside", dtype), pa.field("id", pa.int64(), nullable=False), ("f", pa.float64())]
    )
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    passing = (FIELD("id") > 1) & (FIELD("f") > 0.5)
    with table.writer() as writer:
        for compact in (False, True):
            # NaN is the largest number to Lance, and not to pyarrow.
            writer.put([{"id": 1, "f": 1.0}, {"id": 2, "f": float("nan")}, {"id": 3, "f": 0.0}])
            if compact:
                writer.flush()
                table.compact()
            assert table.scan(filter=passing).to_table()["id"].to_pylist() == [2]
            assert table.count(passing) == 1
            assert table.scan().to_dataset().count_rows(passing) == 1


@pytest.mark.parametrize("level", ["base", "durable"])
@pytest.mark.parametrize("predicate", ["sum(x) > 1", "_rowid > 2", "`_rowaddr` > 2"])
def test_l3_what_a_filter_cannot_say_is_refused_alike_in_every_level(table, predicate, level):
    for read in (
        lambda: table.count(predicate, freshness=level),
        lambda: table.scan(filter=predicate, freshness=level).to_table(),
    ):
        with pytest.raises(weir.InvalidInput):
            read()


def test_l3_the_name_of_a_column_of_lance_may_be_in_a_text(table):
    assert table.count("s = 'the _rowid'") == 0


@pytest.mark.parametrize("name", ["__weir_row", "weir_anchor", "row", "Row", "anchor", "ROW_"])
def test_a_column_may_have_the_name_of_one_that_a_read_adds(tmp_path, name):
    """Reads number rows and anchor expressions by columns of their own beside the caller's."""
    schema = pa.schema([("id", pa.int64()), (name, pa.int64()), ("text", pa.utf8())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, name: n, "text": "fox"} for n in range(3)])
    table.compact(fold_wal=True)
    with table.writer() as writer:
        writer.put([{"id": n, name: n, "text": "fox"} for n in range(3, 6)])
        for passing in (f"`{name}` >= 2", pc.field(name) >= 2, "id >= 2"):
            assert sorted(table.search("text", "fox", filter=passing)["id"].to_pylist()) == [
                *range(2, 6)
            ]
            assert table.count(passing) == 4
        computed = table.scan(columns={"id": "id", "more": f"`{name}` + 1"}).to_table()
        assert computed["more"].to_pylist() == [number + 1 for number in computed["id"].to_pylist()]
        writer.update_where(f"`{name}` >= 4", {name: f"`{name}` * 10"})
        writer.put(
            [{"id": 4, name: 1, "text": "fox"}], when=f"incoming.`{name}` < current.`{name}`"
        )
    found = table.scan(columns=["id", name], order_by="id").to_table()
    assert found[name].to_pylist() == [0, 1, 2, 3, 1, 50]
