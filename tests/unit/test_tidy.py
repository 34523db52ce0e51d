"""The house rules hold, and each of them can fail."""

import ast
from pathlib import Path

import pytest

from tools import tidy

ROOT = Path(__file__).resolve().parents[2]


def messages(module: str, text: str) -> str:
    return "\n".join(message for _, message in tidy.check_source(module, text))


def test_the_project_keeps_its_own_rules() -> None:
    assert tidy.check_tree(ROOT / "src") == []
    assert tidy.check_tests(ROOT / "tests") == []


@pytest.mark.parametrize(
    ("block", "is_told"),
    [
        ("with pytest.raises(E):\n    f()", False),
        ("with table.writer() as w, pytest.raises(E):\n    w.put()", False),
        ("with pytest.raises(E), translated():\n    raise E", False),
        ("with pytest.raises(E), table.writer() as w:\n    w.put()", True),
        ("with pytest.raises(E):\n    with table.writer() as w:\n        w.put()", True),
    ],
)
def test_a_test_names_the_call_that_must_raise(block: str, *, is_told: bool) -> None:
    assert bool(list(tidy.check_raises(ast.parse(block)))) == is_told


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("weir", "from weir.table import Table"),
        ("weir.config", "from weir.errors import InvalidInput"),
        ("weir.store.retry", "from weir.store.api import Store"),
        ("weir.store.objects", "import obstore"),
        ("weir.lake.datasets", "from lance import dataset"),
        ("weir.log.fence", "from weir import errors, store"),
        ("weir.upkeep.clone", "import weir.read.snapshot"),
        ("weir.spark.source", "from pyspark.sql.datasource import DataSource"),
        ("weir.spark.jobs", "from weir.upkeep.tasks import Plan"),
        ("weir.cli.main", "import click\nimport weir\nfrom weir import Table"),
        ("weir.testing.contract", "from weir.store.api import Store"),
        ("weir.__main__", "from weir.cli import main"),
        ("weir.upkeep.tasks", "importlib.import_module(f'weir.upkeep.{module}')"),
        ("weir.cli.upkeep", "import weir\nfrom weir.spark.session import session"),
        ("pyspark_weir", "import pyspark\nfrom weir.spark import register"),
    ],
)
def test_imports_down_the_layers_pass(module: str, line: str) -> None:
    assert messages(module, line) == ""


def test_names_of_objects_are_built_in_one_module() -> None:
    assert "_weir/" in messages("weir.spark.staging", 'folder = f"_weir/staging/{job}"')
    assert "_mem_wal" in messages("weir.log.tip", 'SHARDS = "_mem_wal"')
    assert messages("weir.format.paths", 'SHARDS = "_mem_wal"') == ""
    assert messages("weir.log.tip", '"""Reads `_mem_wal/`."""\nRECORD = "__weir_row"') == ""


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("weir.errors", "from weir.store.api import Store", "direction"),
        ("weir.format.keys", "from weir.store.api import Store", "direction"),
        ("weir.format.paths", "import weir.store", "direction"),
        ("weir.log.tailer", "from weir import lake", "direction"),
        ("weir.lake.datasets", "from weir.log.fence import claim", "direction"),
        ("weir.shard.writer", "def f():\n    import weir.read.scan", "direction"),
        ("weir.shard.writer", "from weir import Table", "direction"),
        ("weir.spark.jobs", "from weir.cli import main", "direction"),
        ("weir.cli.put", "import weir.testing.seaweed", "direction"),
        ("weir.read.scan", "importlib.import_module('weir.upkeep.checkpoint')", "direction"),
        ("weir.read.scan", "import_module(f'weir.upkeep.{name}')", "direction"),
        ("weir.read.scan", "__import__('lance')", "imports lance"),
        ("weir.read.scan", "importlib.import_module(name)", "computed name"),
        ("weir.testing.fault_store", "from weir.upkeep import collect", "direction"),
        ("weir.upkeep.gc.collect", "from simulator.scheduler import Actor", "imports simulator"),
        ("weir.shard.flush", "import obstore.store", "imports obstore"),
        ("weir.shard.flush", "from lance.fragment import write_fragments", "imports lance"),
        ("weir.upkeep.tasks", "import pyspark", "imports pyspark"),
        ("weir.table", "import click", "imports click"),
        ("weir", "import obstore", "imports obstore"),
        ("weir.store.retry", "from .api import Store", "relative"),
        ("weir.helpers", "", "in no layer"),
        ("weir.env", "def", "does not parse"),
    ],
)
def test_imports_against_the_layers_are_found(module: str, line: str, message: str) -> None:
    assert message in messages(module, line)


def test_long_functions_are_found() -> None:
    body = "    x = 1\n"
    assert messages("weir.env", "def f():\n" + body * (tidy.FUNCTION_LINES_MAX - 1)) == ""
    assert "f: 71 lines" in messages("weir.env", "def f():\n" + body * tidy.FUNCTION_LINES_MAX)


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_leftover_notes_are_found(word: str) -> None:
    assert word in messages("weir.env", f"x = 1  # {word}: later")


def test_every_import_is_seen_wherever_it_stands() -> None:
    text = "import a\nif x:\n    import b.c\nclass K:\n    def f(self):\n        from d import e\n"
    assert [name for _, name in tidy.imports(ast.parse(text))] == ["a", "b.c", "d.e"]
