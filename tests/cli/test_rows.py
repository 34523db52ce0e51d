"""Rows into and out of a table, in every format."""

import io
import json
import sys

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

import weir
from tests.support.tables import load_rows

NEW = pa.table({"id": [3, 4], "v": [30.0, 40.0], "name": ["three", None]})


def as_bytes(format):
    if format == "csv":
        return b"id,v,name\n3,30.0,three\n4,40.0,\n"
    if format == "jsonl":
        return b'{"id": 3, "v": 30, "name": "three"}\n{"id": 4, "v": 40.0}\n'
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(NEW, sink)
    elif format == "arrow":
        with ipc.new_stream(sink, NEW.schema) as writer:
            writer.write_table(NEW)
    else:
        with ipc.new_file(sink, NEW.schema) as writer:
            writer.write_table(NEW)
    return sink.getvalue()


FORMATS = ["csv", "jsonl", "parquet", "arrow", "arrow-file"]


def expect_new(table):
    found = table.scan().to_table().sort_by("id")
    assert found["id"].to_pylist() == [1, 2, 3, 4]
    assert found["v"].to_pylist() == [0.5, 1.0, 30.0, 40.0]
    assert found["name"].to_pylist() == ["row 1", "row 2", "three", None]


@pytest.mark.parametrize("format", FORMATS)
def test_put_takes_a_file(run, table, tmp_path, format):
    file = tmp_path / f"rows.{format.partition('-')[0]}"
    file.write_bytes(as_bytes(format))
    ran = run("put", table.uri, file, "--json")
    assert ran.status == 0, ran.err
    assert ran.json()["rows"] == 2
    expect_new(table)


@pytest.mark.parametrize("format", FORMATS)
def test_put_tells_the_format_of_standard_input_by_its_first_bytes(run, table, monkeypatch, format):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_bytes(format))))
    ran = run("put", table.uri)
    assert ran.status == 0, ran.err
    expect_new(table)


@pytest.mark.parametrize("kind", ["lance", "weir"])
def test_put_takes_a_dataset_or_another_table_with_its_fresh_rows(run, table, tmp_path, kind):
    source = str(tmp_path / "source.lance")
    if kind == "lance":
        lance.write_dataset(NEW, source)
    else:
        schema = pa.schema([NEW.schema.field("id").with_nullable(False), *list(NEW.schema)[1:]])
        other = weir.create(source, schema, primary_key="id")
        other.shard(0).writer().put(NEW)
    assert run("put", table.uri, source).status == 0
    expect_new(table)


def test_put_deletes_by_key(run, table, tmp_path):
    file = tmp_path / "keys.csv"
    file.write_text("id\n1\n3\n")
    assert run("put", table.uri, file, "--delete").status == 0
    assert table.scan().to_table()["id"].to_pylist() == [2]


@pytest.mark.parametrize("format", ["csv", "jsonl", "arrow", "parquet"])
def test_rows_that_were_read_can_be_deleted(run, table, tmp_path, format):
    """All columns come along; the table has them, and only the keys count."""
    file = tmp_path / f"old.{format}"
    scan = ["scan", table.uri, "--filter", "id > 1", "--output", file]
    assert run(*scan).status == 0
    assert run("put", table.uri, file, "--delete").status == 0
    assert table.scan().to_table()["id"].to_pylist() == [1]


def test_what_holds_no_keys_deletes_nothing_and_says_so(run, table, tmp_path):
    file = tmp_path / "old.parquet"
    pq.write_table(pa.table({"v": [1.0]}), file)
    ran = run("put", table.uri, file, "--delete")
    assert (ran.status, table.count()) == (1, 3)
    assert "key column 'id' is missing" in ran.err


def test_put_in_pieces_gives_the_same_rows(run, table, tmp_path):
    file = tmp_path / "many.parquet"
    pq.write_table(pa.table({"id": range(100), "v": [1.0] * 100}), file)
    assert run("put", table.uri, file, "--batch-rows", 7, "--json").json()["puts"] == 15
    assert table.scan().count() == 100


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "id,v\nx,1\n", "as csv"),
        ("a.jsonl", '{"id": "x"}\n', "as jsonl"),
        ("a.jsonl", '{"id": 1, "v": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ("a.parquet", "no", "as parquet"),
        ("a.csv", "id,w\n1,1\n", "'w'"),
        ("a.txt", "", "--format"),
    ],
)
def test_put_of_what_does_not_fit_names_it_and_writes_nothing(
    run, table, tmp_path, name, content, words
):
    file = tmp_path / name
    file.write_text(content)
    ran = run("put", table.uri, file)
    assert ran.status == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert table.scan().count() == 3


def test_put_beside_another_writer_says_what_happened_and_what_to_do(run, table, tmp_path):
    file = tmp_path / "many.csv"
    file.write_text("id,v\n" + "".join(f"{i},1\n" for i in range(100)))
    real, takers = weir.TableWriter.put, []

    def put(self, data, **options):
        done = real(self, data, **options)
        if not takers:  # after the first batch another writer takes a shard over
            takers.append(table.shard(0).writer())
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weir.TableWriter, "put", put)
        ran = run("put", table.uri, file, "--batch-rows", 50)
    takers[0].close()
    assert ran.status == 1
    assert "another writer took over 1 shard" in ran.err
    assert "50 rows durable: run it again with --skip 50" in ran.err
    assert run("put", table.uri, file).status == 0
    assert table.scan().count() == 100


@pytest.mark.parametrize("key", [["--key", "id"], []], ids=["a key", "append-only"])
def test_a_put_that_fails_halfway_says_what_is_durable_and_goes_on_from_there(run, tmp_path, key):
    uri = tmp_path / "t"
    assert run("create", uri, "-C", "id:int64", "-C", "v:float64", *key).status == 0
    file = tmp_path / "rows.jsonl"
    lines = [f'{{"id": {i}, "v": 1}}\n' for i in range(10)]
    # The end of a file is read after the rows of another one were put.
    (tmp_path / "first.csv").write_text("id,v\n" + "".join(f"{i},1\n" for i in range(100, 125)))
    file.write_text("".join([*lines, "{broken\n"]))
    put = ["put", uri, tmp_path / "first.csv", file, "--batch-rows", 10]
    ran = run(*put)
    assert ran.status == 1
    assert ran.err.count("\n") == 1
    assert "line 11: " in ran.err
    assert "20 rows durable: run it again with --skip 20" in ran.err
    assert weir.open(str(uri)).count() == 20
    file.write_text("".join(lines))
    assert run(*put, "--skip", 20, "--json").json()["rows"] == 15
    assert weir.open(str(uri)).count() == 35


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("a.csv", "7,x,", "record 22: column 'v', double: "),
        ("a.csv", "7", "record 22: 1 cells, not 3"),
        ("a.csv", "7,1,Z\xfcrich", "record 22: CSV conversion error to string: invalid UTF8"),
        ("a.jsonl", '{"id": 7, "v": "x"}', "line 23: column 'v', double: "),
        ("a.jsonl", '{"id": 7', "line 23: "),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place_in_the_whole_file(
    run, table, tmp_path, monkeypatch, name, row, said
):
    from weir.cli import texts

    monkeypatch.setattr(texts, "_BLOCK", 32)  # the row is not in the first block
    lines = ["id,v,name", *(f'{i},1,"a\nb"' for i in range(20))]
    if name == "a.jsonl":
        lines = [f'{{"id": {i}}}' for i in range(20)] + ["", ""]
    (tmp_path / name).write_text("\n".join([*lines, row, ""]), encoding="latin-1")
    ran = run("put", table.uri, tmp_path / name)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert said in ran.err


def test_an_interrupted_put_says_what_is_durable(run, table, tmp_path, monkeypatch):
    file = tmp_path / "rows.csv"
    file.write_text("id\n" + "".join(f"{i}\n" for i in range(30)))
    real, puts = weir.TableWriter.put, []

    def put(self, data, **options):
        puts.append(data)
        if len(puts) == 3:
            raise KeyboardInterrupt
        return real(self, data, **options)

    monkeypatch.setattr(weir.TableWriter, "put", put)
    ran = run("put", table.uri, file, "--batch-rows", 10)
    said = "weir: interrupted; 20 rows durable: run it again with --skip 20\n"
    assert (ran.status, ran.err) == (130, said)


def test_of_an_append_only_table_a_put_that_fails_may_have_left_rows(run, tmp_path, monkeypatch):
    uri = tmp_path / "t"
    assert run("create", uri, "-C", "id:int64").status == 0
    (tmp_path / "rows.csv").write_text("id\n1\n")

    def put(*_, **__):
        raise weir.StoreError("no answer")

    monkeypatch.setattr(weir.TableWriter, "put", put)
    ran = run("put", uri, tmp_path / "rows.csv")
    assert "no answer; 0 rows durable (some of the next ones may be durable, too)" in ran.err


def test_no_file_is_put_when_a_later_one_is_missing(run, table, tmp_path):
    (tmp_path / "a.csv").write_text("id\n77\n")
    ran = run("put", table.uri, tmp_path / "a.csv", tmp_path / "none.csv")
    assert (ran.status, table.count()) == (1, 3)
    assert "none.csv" in ran.err


def test_keys_to_delete_need_a_key(run, tmp_path):
    assert run("create", tmp_path / "t", "-C", "id:int64").status == 0
    ran = run("put", tmp_path / "t", "--delete", tmp_path / "keys.csv")
    assert (ran.status, "append-only" in ran.err) == (2, True)


FAR = {
    "us": (pa.timestamp("us"), [2**63 - 1, -(2**63), 4 * 10**17]),
    "ns": (pa.timestamp("ns", "UTC"), [2**63 - 1, -(2**63), 1_767_323_045_123_456_789]),
    "day": (pa.date32(), [2**31 - 1, -(2**31), -800_000]),
    "list": (pa.list_(pa.timestamp("s")), [[10**12], [-(10**12)], None]),
}


@pytest.mark.parametrize("kind", FAR)
def test_a_time_that_python_cannot_hold_is_shown_and_put_again(run, tmp_path, kind):
    dtype, counts = FAR[kind]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", dtype)])
    if kind == "list":
        moments = pa.array(counts, pa.list_(pa.int64())).cast(dtype)
    else:
        moments = pa.array(counts, pa.int32() if kind == "day" else pa.int64()).cast(dtype)
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put(pa.table([pa.array([0, 1, 2]), moments], schema=schema))
    written = [json.loads(line)["at"] for line in run("scan", table.uri, "--json").out.splitlines()]
    for arguments in (["scan", table.uri], ["get", table.uri, 0, 1, 2],
                      ["tail", table.uri, "--no-follow"]):  # fmt: skip
        ran = run(*arguments)
        assert ran.status == 0, ran.err
        assert all(str(text if kind != "list" else text[0]) in ran.out for text in written if text)
    for format in ("csv", "jsonl"):
        file = tmp_path / f"rows.{format}"
        assert run("scan", table.uri, "--output", file).status == 0
        copy = weir.create(str(tmp_path / format), schema, primary_key="id")
        assert run("put", copy.uri, file).status == 0
        assert copy.scan().to_table().sort_by("id") == table.scan().to_table().sort_by("id")


@pytest.mark.parametrize("rows", [[9], range(9, 20)], ids=["one shard", "all shards"])
def test_a_takeover_after_the_last_row_is_no_failure(run, table, tmp_path, monkeypatch, rows):
    file = tmp_path / "one.csv"
    file.write_text("id,v\n" + "".join(f"{i},9\n" for i in rows))
    real, takers = weir.TableWriter.close, []

    def close(self):
        takers.extend(shard.writer() for shard in table.shards())
        real(self)

    monkeypatch.setattr(weir.TableWriter, "close", close)
    ran = run("put", table.uri, file)
    for taker in takers:
        taker.close()
    assert ran.status == 0, ran.err
    assert table.get([9])["v"].to_pylist() == [9.0]


def test_put_of_a_missing_file(run, table):
    ran = run("put", table.uri, "no-such-file.csv")
    assert ran.status == 1
    assert "no-such-file.csv" in ran.err


def test_scan_as_a_table_as_lines_as_csv_and_as_arrow(run, table, tmp_path):
    shown = run("scan", table.uri, "--filter", "id > 1", "--columns", "id,name")
    assert "row 2" in shown.out
    assert "row 1" not in shown.out
    assert "2 rows" in shown.out
    lines = run("scan", table.uri, "--json", "--filter", "id = 2").lines()
    assert lines == [{"id": 2, "v": 1.0, "name": "row 2"}]
    csv = run("scan", table.uri, "--format", "csv", "--filter", "id = 3").out
    assert csv == '"id","v","name"\n3,1.5,"row 3"\n'
    more = run("scan", table.uri, "--json", "-w", "id = 2", "--computed", "twice=v * 2").lines()
    assert more == [{"id": 2, "v": 1.0, "name": "row 2", "twice": 2.0}]
    few = ("--columns", "id", "--computed", "big = v >= 1", "--computed", "n=length(name)")
    assert run("scan", table.uri, "--json", "-w", "id = 2", *few).lines() == [
        {"id": 2, "big": True, "n": 5}
    ]
    wrong = run("scan", table.uri, "--computed", "v * 2")
    assert (wrong.status, "NAME=SQL" in wrong.err) == (2, True)
    file = tmp_path / "out.arrow"
    assert run("scan", table.uri, "--format", "arrow", "--output", file).status == 0
    assert ipc.open_stream(file.read_bytes()).read_all().num_rows == 3


KINDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32(), 3)),
        ("tags", pa.list_(pa.string())),
    ]
)


def test_text_comes_in_blocks_that_end_with_a_line(monkeypatch):
    from weir.cli import texts

    monkeypatch.setattr(texts, "_BLOCK", 16)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    csv = b"id,name\n" + b"".join(b"%d,name %d\n" % (i, i) for i in range(50)) + b"50,last"
    found = pa.Table.from_batches(texts.csv(io.BytesIO(csv), schema))
    assert found["id"].to_pylist() == list(range(51))
    assert found["name"].to_pylist()[-1] == "last"
    lines = b"".join(b'{"id": %d, "name": "%d"}\n' % (i, i) for i in range(50)) + b"\n\n"
    found = pa.Table.from_batches(texts.json_lines(io.BytesIO(lines), schema))
    assert found["id"].to_pylist() == list(range(50))


@pytest.mark.parametrize(
    ("text", "words"),
    [('[{"id": 1}]', "JSON array"), ("", None), ("id\n", None), ('{"id": "x"}', "as jsonl")],
)
def test_odd_text_on_standard_input(run, table, monkeypatch, text, words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ran = run("put", table.uri)
    assert ran.status == (0 if words is None else 1)
    assert words is None or words in ran.err
    assert ran.err.count("\n") == (words is not None)


def test_the_end_of_a_terminal_s_input_is_asked_for_once(run, table, monkeypatch):
    """A terminal goes on after a Ctrl-D: the command waited for a second one."""

    class Terminal(io.RawIOBase):
        has_ended = False

        def readable(self):
            return True

        def readinto(self, buffer):
            assert not self.has_ended, "asked again"
            self.has_ended = True
            return 0

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Terminal())))
    assert run("put", table.uri).status == 0


@pytest.mark.parametrize("through", ["a file", "standard input"])
def test_a_mark_of_the_byte_order_before_json_lines_is_passed_over(
    run, table, tmp_path, monkeypatch, through
):
    content = b'\xef\xbb\xbf{"id": 77}\n{"id": 78}\n'
    (tmp_path / "a.jsonl").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    ran = run("put", table.uri, *([tmp_path / "a.jsonl"] if through == "a file" else []))
    assert ran.status == 0, ran.err
    assert table.scan().count() == 5


@pytest.mark.parametrize(
    ("column", "text"), [("raw", "not base64!"), ("vector", "[1, 2"), ("tags", "plain")]
)
def test_a_cell_that_is_not_what_its_column_needs_names_the_column(run, tmp_path, column, text):
    table = weir.create(str(tmp_path / "kinds"), KINDS, primary_key="id")
    file = tmp_path / "rows.csv"
    file.write_text(f'id,{column}\n1,"{text}"\n')
    ran = run("put", table.uri, file)
    assert ran.status == 1
    assert repr(column) in ran.err
    assert str(file) in ran.err


def test_scan_count_limit_and_explain(run, table):
    assert run("scan", table.uri, "--count").out == "3\n"
    assert run("scan", table.uri, "--count", "--json").json() == {"rows": 3}
    assert len(run("scan", table.uri, "--json", "--limit", 2).lines()) == 2
    assert "base version" in run("scan", table.uri, "--explain").out


def test_a_table_on_the_screen_stops_after_fifty_rows_and_says_so(run, terminal, table):
    with table.writer() as writer:
        writer.put([{"id": i} for i in range(100)])
    shown = terminal("scan", table.uri)
    assert "the first 50 rows" in shown.out
    assert len(shown.out.splitlines()) == 53
    piped = run("scan", table.uri).out.splitlines()
    assert piped[-1] == "100 rows"
    assert sorted(int(line.split()[0]) for line in piped[2:-1]) == list(range(100))


def test_get_finds_keys_and_fails_for_a_missing_one(run, table):
    assert run("get", table.uri, 2, "--json").json()["name"] == "row 2"
    ran = run("get", table.uri, 2, 99, "--json")
    assert ran.status == 1
    assert len(ran.lines()) == 1
    assert "1 of 2 keys not found" in ran.err
    bad = run("get", table.uri, "x")
    assert bad.status == 1
    assert "'id', int64" in bad.err


def test_get_by_a_key_of_two_columns(run, tmp_path):
    schema = pa.schema([pa.field("a", pa.string(), nullable=False),
                        pa.field("b", pa.int32(), nullable=False)])  # fmt: skip
    table = weir.create(str(tmp_path / "two"), schema, primary_key=["a", "b"])
    with table.writer() as writer:
        writer.put([{"a": "x", "b": 1}, {"a": "x", "b": 2}])
    assert run("get", table.uri, "x,2", "--json").json() == {"a": "x", "b": 2}
    assert run("get", table.uri, "x").status == 1


def test_tail_shows_puts_and_deletes_and_resumes_at_its_bookmark(run, table, tmp_path):
    bookmark = tmp_path / "mark.json"
    tail = ["tail", table.uri, "--no-follow", "--json", "--bookmark", bookmark]
    first = run(*tail).lines()
    assert sorted(line["row"]["id"] for line in first) == [1, 2, 3]
    assert {line["kind"] for line in first} == {"put"}
    assert run(*tail).out == ""
    with table.writer() as writer:
        writer.delete([2])
    again = run(*tail).lines()
    assert [(line["kind"], line["row"]) for line in again] == [("delete", {"id": 2})]
    shown = run("tail", table.uri, "--no-follow").out
    assert shown.count("+ ") == 3
    assert shown.count("- ") == 1
    assert len(run("tail", table.uri, "--json", "--limit", 2).lines()) == 2  # follows up to that


def test_tail_stops_at_a_load_and_says_how_to_go_on(run, table, tmp_path):
    mark = tmp_path / "mark"
    ways = (["--bookmark", mark], ["--consumer", "mirror"])
    tail = ["tail", table.uri, "--no-follow", "--json"]
    for way in ways:
        assert run(*tail, *way).status == 0
    kept = mark.read_text()
    load_rows(table, {7: 0.5}, replaces=True)
    for way in ways:
        stopped = run(*tail, *way)
        assert (stopped.status, stopped.out) == (1, "")
        assert "without the log" in stopped.err
        assert "weir tail --rows" in stopped.err
    assert mark.read_text() == kept
    assert run("consumer", "drop", table.uri, "mirror", "--yes").status == 0
    again = run(*tail, "--rows", "--consumer", "mirror")
    assert [line["row"]["id"] for line in again.lines()] == [7]
    assert run(*tail, "--consumer", "mirror").out == ""


def test_tail_goes_on_where_its_consumer_was(run, table):
    tail = ["tail", table.uri, "--no-follow", "--json", "--consumer", "mirror"]
    first = run(*tail, "--limit", 1).lines()
    left = run(*tail).lines()
    assert sorted(line["row"]["id"] for line in [*first, *left]) == [1, 2, 3]
    assert run(*tail).out == ""
    with table.writer() as writer:
        writer.delete([2])
    assert [line["kind"] for line in run(*tail).lines()] == ["delete"]
    assert run("tail", table.uri, "--no-follow", "--new", "--consumer", "later").out == ""
    assert run("consumer", "list", table.uri, "--json").json()[1]["name"] == "mirror"


def test_tail_that_is_interrupted_while_it_shows_a_change_shows_it_again(run, table, monkeypatch):
    from weir.cli import tail

    def show(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tail, "_show", show)
    run("tail", table.uri, "--consumer", "mirror")
    monkeypatch.undo()
    shown = run("tail", table.uri, "--no-follow", "--json", "--consumer", "mirror").lines()
    assert len(shown) == 3


def test_tail_shows_the_rows_of_now_first(run, table):
    with table.writer() as writer:
        writer.delete([2])
    table.compact()
    tail = ["tail", table.uri, "--no-follow", "--json", "--rows"]
    assert sorted(line["row"]["id"] for line in run(*tail).lines()) == [1, 3]
    assert sorted(line["row"]["id"] for line in run(*tail, "--consumer", "x").lines()) == [1, 3]
    assert run(*tail, "--consumer", "x").out == ""
    assert run(*tail, "--new").status == 2


def test_consumers_are_listed_and_dropped(run, table):
    assert "no consumers" in run("consumer", "list", table.uri).out
    table.changes(consumer="mirror")
    shown = run("consumer", "list", table.uri).out
    assert "mirror" in shown
    assert "in 7 d" in shown or "in 6 d" in shown
    (told,) = run("consumer", "list", table.uri, "--json").json()
    assert told["lag"] == sum(shard.wal_tip for shard in table.stats().shards) > 0
    assert told["has_rows"]
    assert f"mirror {told['lag']} behind" in run("stats", table.uri).out
    assert run("consumer", "drop", table.uri, "mirror", "--yes").status == 0
    assert table.stats().consumers == ()
    ran = run("consumer", "drop", table.uri, "mirror", "--yes")
    assert ran.status == 1
    assert "has no consumer 'mirror'" in ran.err


def test_a_follower_that_is_killed_repeats_one_entry_at_most(run, table, tmp_path, monkeypatch):
    from weir.cli import tail

    bookmark = tmp_path / "mark.json"
    shown = []

    def show(change, *_, **__):
        shown.append(change.position)
        if len(shown) == 2:
            raise SystemExit(9)  # a killed process runs no handlers, so nothing is saved here

    monkeypatch.setattr(tail, "_show", show)
    run("tail", table.uri, "--bookmark", bookmark)
    monkeypatch.undo()
    left = run("tail", table.uri, "--no-follow", "--json", "--bookmark", bookmark).lines()
    assert len(left) < 3
    assert run("tail", table.uri, "--no-follow", "--json", "--bookmark", bookmark).out == ""


def test_a_bookmark_in_no_folder_is_an_error_before_a_row_is_shown(run, table, tmp_path):
    ran = run("tail", table.uri, "--no-follow", "--bookmark", tmp_path / "no" / "mark.json")
    assert (ran.status, ran.out) == (1, "")
    assert "folder" in ran.err


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]"])
def test_a_file_that_is_no_bookmark_is_named(run, table, tmp_path, content):
    (tmp_path / "mark.json").write_bytes(content)
    ran = run("tail", table.uri, "--no-follow", "--bookmark", tmp_path / "mark.json")
    assert (ran.status, ran.out) == (1, "")
    assert "mark.json: not a bookmark" in ran.err


def test_tail_from_now_on(run, table):
    assert run("tail", table.uri, "--no-follow", "--new").out == ""


def test_values_of_every_kind_are_shown(run, terminal, tmp_path):
    import datetime as dt
    import decimal

    row = {
        "id": 1,
        "raw": b"\x00\xff",
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "vector": [0.5] * 8,
        "deep": {"a": [1]},
        "exact": decimal.Decimal("1.20"),
        "markup": "[bold]not bold[/bold]",
    }
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
            ("vector", pa.list_(pa.float32(), 8)),
            ("deep", pa.struct([("a", pa.list_(pa.int64()))])),
            ("exact", pa.decimal128(5, 2)),
            ("markup", pa.string()),
        ]
    )
    table = weir.create(str(tmp_path / "kinds"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([row])
    found = run("scan", table.uri, "--json").json()
    assert found["vector"] == [0.5] * 8
    assert found["at"].startswith("2026-01-02")
    assert found["exact"] == "1.20"
    for format in ("table", "csv", "arrow"):
        assert run("scan", table.uri, "--columns", "id,raw,at,vector,exact,markup,deep",
                   "--format", format).status == 0  # fmt: skip
    shown = terminal("scan", table.uri, "--columns", "markup,vector").out
    assert "[bold]not bold[/bold]" in shown
    assert "(8)" in shown
    assert json.loads(run("scan", table.uri, "--json", "--columns", "raw").out)["raw"] == "AP8="


def test_search_by_vector_and_by_words(run, tmp_path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("e", pa.list_(pa.float32(), 2)),
        ]
    )
    table = weir.create(str(tmp_path / "docs"), schema, primary_key="id")
    with table.writer() as writer:
        words = ["fresh rows", "old news", "nothing else"]
        writer.put([{"id": i, "text": words[i], "e": [i, 1.0]} for i in range(3)])
        near = run("search", table.uri, "e", "[1.9, 1]", "--k", 1, "--json").lines()
        assert [row["id"] for row in near] == [2]
        found = run("search", table.uri, "text", "fresh", "--json").lines()
        assert [row["id"] for row in found] == [0]
        later = run("search", table.uri, "e", "[1.9, 1]", "--k", 1, "--offset", 1, "--json").lines()
        assert [row["id"] for row in later] == [1]
        for words, option, ids in (
            ("rows fresh", "--all", [0]),
            ("rows fresh", "--phrase", []),
            ("fresh rows", "--phrase", [0]),
        ):
            found = run("search", table.uri, "text", words, option, "--json").lines()
            assert [row["id"] for row in found] == ids
    both = run("search", table.uri, "text", "fresh", "--all", "--phrase")
    assert (both.status, "not both" in both.err) == (2, True)
    assert run("search", table.uri, "e", "[1, x]").status == 1


@pytest.mark.parametrize("command", ["put", "scan"])
def test_an_unknown_format_is_a_wrong_use(run, table, tmp_path, command):
    file = tmp_path / "rows.csv"
    file.write_text("id,v\n1,2.0\n")
    ran = run(command, table.uri, *([file] if command == "put" else []), "--format", "xml")
    assert ran.status == 2
    assert "'xml' is not one of" in ran.err


def test_a_file_that_the_caller_names_by_a_uri_may_be_a_link(run, table, tmp_path):
    (tmp_path / "a.csv").write_text("id\n77\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    ran = run("put", table.uri, f"file://{tmp_path}/link.csv")
    assert (ran.status, table.scan().count()) == (0, 4), ran.err
    assert "there is no file" in run("put", table.uri, f"file://{tmp_path}/none.csv").err


def test_a_number_that_a_column_of_text_refuses_is_shown_as_it_was_written(run, table, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1, "name": 5}\n')
    assert run("put", table.uri, file).err.endswith("string cannot hold 5\n")
