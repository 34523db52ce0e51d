"""A day at the shell against a real S3 server, with the options in a file, in the environment or
on the command line, and the log on a disk of its own."""

import json

import pytest

import weir
from tests.cli.conftest import SCHEMA
from weir.store.open import open_store


@pytest.fixture(params=["file", "environment", "flags"])
def options(request, store_kind, tmp_path, monkeypatch, run):
    """The flags to pass; the file and the environment give the same options without flags."""
    del run  # requested first, because it clears what this fixture sets
    found = store_kind.storage_options
    if request.param == "flags":
        return [word for name, value in found.items() for word in ("-o", f"{name}={value}")]
    if request.param == "environment":
        monkeypatch.setenv("WEIR_STORAGE_OPTIONS", json.dumps(found))
    else:
        folder = tmp_path / "config" / "weir"
        folder.mkdir(parents=True)
        lines = [f'{name} = "{value}"\n' for name, value in found.items()]
        (folder / "config.toml").write_text('[store."s3://"]\n' + "".join(lines))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return []


@pytest.mark.s3
@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
def test_options_reach_the_store_from_each_of_their_places(run, options, table_uri):
    ran = run("create", table_uri, "-C", "id:int64", "--key", "id", *options)
    assert ran.status == 0, ran.err


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
@pytest.mark.parametrize("options", ["file"], indirect=True)
def test_a_table_on_s3_with_its_log_on_a_disk(run, options, store_kind, table_uri, tmp_path):
    rows = tmp_path / "new.csv"
    rows.write_text("id,v\n1,a\n2,b\n3,c\n")
    wal = tmp_path / "wal"

    def works(*arguments):
        ran = run(*arguments, *options)
        assert ran.status == 0, ran.err
        return ran.out

    made = works("create", table_uri, "--like", rows, "--key", "id", "--wal-uri", wal)
    assert str(wal) in made.replace("\n", "")
    works("put", table_uri, rows)
    assert any(wal.rglob("*.arrow"))
    assert works("scan", table_uri, "--count") == "3\n"
    works("compact", table_uri)
    works("checkpoint", "create", table_uri, "--name", "x")
    works("clone", table_uri, f"{table_uri}-copy", "--checkpoint", "x")
    works("clone", table_uri, tmp_path / "backup", "--deep")
    works("gc", table_uri)
    works("doctor", table_uri)
    copy = weir.open(f"{table_uri}-copy", storage_options=store_kind.storage_options)
    assert copy.scan().count() == 3
    assert weir.open(str(tmp_path / "backup")).scan().count() == 3


@pytest.mark.s3
@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
@pytest.mark.parametrize("options", ["environment"], indirect=True)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl", "rows.arrow"])
def test_put_reads_a_file_on_a_store(run, options, store_kind, table_uri, tmp_path, name):
    file = tmp_path / name
    first = weir.create(str(tmp_path / "first"), SCHEMA, primary_key="id")
    with first.writer() as writer:
        writer.put([{"id": i, "name": "n", "v": i / 2} for i in range(5)])
    assert run("scan", first.uri, "--output", file).status == 0
    folder, _, _ = table_uri.rpartition("/")
    open_store(folder, store_kind.storage_options).put(name, file.read_bytes())
    assert run("create", table_uri, "--like", f"{folder}/{name}", "--key", "id").status == 0
    ran = run("put", table_uri, f"{folder}/{name}")
    assert ran.status == 0, ran.err
    assert run("scan", table_uri, "--count").out == "5\n"
    gone = run("put", table_uri, f"{folder}/none.csv")
    assert gone.status == 1
    assert "none.csv" in gone.err
