"""The demo runs to its end and notices when a result is wrong."""

import pytest

import weir
from weir.demo import run as demo
from weir.demo.stream import Orders


@pytest.mark.slow
@pytest.mark.kill
def test_the_demo_without_spark(run):
    ran = run("demo", "--no-spark", "--rows", 6000, "--json")
    assert ran.status == 0, ran.err
    found = ran.json()
    assert found["passed"]
    assert found["figures"]["replayed_entries"] > 0
    assert found["figures"]["deleted"] > 0


@pytest.mark.slow
@pytest.mark.kill
def test_the_demo_keeps_its_table_and_tells_where_to_look(run, tmp_path):
    ran = run("demo", "--no-spark", "--rows", 6000, "--keep", tmp_path / "kept")
    assert ran.status == 0, ran.err
    assert "held" in ran.out
    assert weir.open(str(tmp_path / "kept" / "orders")).scan().count() > 1000


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.s3
@pytest.mark.timeout(300)
def test_the_demo_on_an_s3_server_of_its_own(run):
    ran = run("demo", "--store", "s3", "--no-spark", "--rows", 6000, "--json")
    assert ran.status == 0, ran.err
    assert ran.json()["passed"]


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_on_spark(run):
    ran = run("demo", "--rows", 6000, "--json")
    assert ran.status == 0, ran.err
    found = ran.json()
    assert found["engine"] == "on Spark"
    assert found["passed"]
    assert found["figures"]["spark_rows"] > 0


def test_the_demo_falls_back_with_a_clear_line(run, monkeypatch):
    from weir.demo import engines

    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda _name: None)
    assert "pip install" in engines.why_no_spark()


def test_the_demo_fails_when_a_row_is_lost(run, monkeypatch):
    real = weir.TableWriter.put

    def lossy(self, data, **options):
        return real(self, data.slice(1), **options)

    monkeypatch.setattr(weir.TableWriter, "put", lossy)
    monkeypatch.setattr(demo, "_kill", lambda _demo: None)
    monkeypatch.setattr(demo, "_freeze", lambda _demo: None)
    ran = run("demo", "--no-spark", "--rows", 6000, "--json")
    assert ran.status == 1
    assert not ran.json()["passed"]


def test_the_same_seed_gives_the_same_stream():
    one, two = Orders(3), Orders(3)
    assert one.batch(500) == two.batch(500)
    assert one.batch(500) == two.batch(500)
    assert one.expected() == two.expected()
    assert one.deletes > 0
    assert Orders(4).batch(500) != Orders(3).batch(500)


def test_a_key_occurs_once_in_a_batch():
    orders = Orders(1)
    for _ in range(5):
        ids = orders.batch(400)["id"].to_pylist()
        assert len(set(ids)) == len(ids)
