"""The demo runs to its end, shows what it promises, and notices when a row is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weir

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "demo"


def demo(*arguments, **environment):
    command = [sys.executable, FOLDER / "demo.py", "--rows", "4000", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.slow
@pytest.mark.kill
def test_the_demo_without_spark_kills_fences_and_keeps_its_table(tmp_path):
    ran = demo("--no-spark", "--keep", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "12 of 12 checks held" in ran.stdout
    assert "the zombie was refused: fenced" in ran.stdout
    assert weir.open(str(tmp_path / "orders")).count() > 1000


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.s3
@pytest.mark.timeout(300)
def test_the_demo_on_an_s3_server_of_its_own():
    ran = demo("--no-spark", "--store", "s3")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "s3://demo/orders" in ran.stdout


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_on_spark_applies_a_batch_sent_twice_once():
    ran = demo()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 micro-batches; 1 sent twice, applied once" in ran.stdout
    assert ran.stderr == ""


LOSSY = """
import weir
put = weir.TableWriter.put
weir.TableWriter.put = lambda self, data, **options: put(self, data.slice(1), **options)
"""


@pytest.mark.slow
@pytest.mark.kill
def test_the_demo_fails_when_a_row_is_lost(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOSSY)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = demo("--no-spark", PYTHONPATH=paths)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "✗" in ran.stdout


def test_the_same_seed_gives_the_same_orders_and_a_key_once_in_a_batch(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from orders import Orders

    one, two = Orders(3), Orders(3)
    for _ in range(3):
        batch = one.batch(500)
        assert batch == two.batch(500)
        assert len(set(batch["id"].to_pylist())) == 500
    assert one.rows == two.rows
    assert one.deletes > 0
