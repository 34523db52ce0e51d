"""A type checker sees what weir returns: a script that uses every verb has no `Any` in it.

pyarrow itself has no types. The stubs beside this test give a type to the few names that the script
uses, which distinguishes weir's own annotations from `Any`.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weir
from tests.docs.facts import VERBS
from tests.typing import every_verb

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "every_verb.py"
NOT_FOR_USERS = {
    "open": "ShardWriter.open and WalAppender.open: a user says shard.writer()",
    "load": "of a bulk load",
    "manifest": "bytes of the format, which only weir reads",
    "log": "a handle of weir's own",
    "site_for_writing": "of WalAppender.open",
    "read_range": "of readers inside weir",
    "to_pandas": "pandas has no types, and the script would import it",
    "to_polars": "as pandas",
    "lazy": "as pandas",
    "to_dataset": "pyarrow's Dataset has no types",
    "narrowed": "for datasets",
    "close": "`with` does it",
    "hand_over": "of the writer of the whole table",
    "see_through": "of the writer of the whole table",
    "cut": "of checkpoints",
    "put_once_shaped": "of the writer of the whole table",
    "decide": "of the writer of the whole table",
    "where": "of the writer of the whole table",
    "decide_once": "of Spark's sinks",
}


def checked(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "MYPYPATH": f"{ROOT / 'src'}:{HERE / 'stubs'}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def scripts(folder: Path) -> list[str]:
    """The script, and one with a mistake and an `Any`; both must be found."""
    text = SCRIPT.read_text()
    wrong = text.replace("assert_type(table, weir.Table)", "table.nothing")
    wrong = wrong.replace("import pyarrow as pa", "from typing import Any\nimport pyarrow as pa", 1)
    wrong = wrong.replace(
        "def main(root: str)",
        "def later(given: Any) -> None:\n    print(given.x)\n\ndef main(root: str)",
    )
    (folder / "right.py").write_text(text)
    (folder / "wrong.py").write_text(wrong)
    return ["right.py", "wrong.py"]


def test_the_script_runs(tmp_path: Path) -> None:
    every_verb.main(str(tmp_path))


def test_mypy_finds_no_any_in_a_users_script(tmp_path: Path) -> None:
    names = scripts(tmp_path)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\ndisallow_any_expr = True\ndisallow_any_decorated = True\n"
        "disallow_any_explicit = True\ndisallow_any_unimported = True\nfollow_imports = silent\n"
        "[mypy-lance.*,obstore.*,pandas.*,google.*,polars.*]\nignore_missing_imports = True\n"
    )
    said = checked([sys.executable, "-m", "mypy", *names], tmp_path)
    assert "right.py" not in said, said
    assert 'has no attribute "nothing"' in said
    assert 'Explicit "Any" is not allowed' in said


def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\nignore_missing_imports = True\n"
        "allow_untyped_calls = True\n"
    )
    parts = [ROOT / "examples" / part for part in (".", "pipeline", "replicas")]
    # Two parts have a program of the same name.
    for names in ([str(path) for path in sorted(part.glob("*.py"))] for part in parts):
        assert len(names) >= 3
        found = _mypy(names, tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr


def _mypy(names: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *names],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_nothing_unknown_in_a_users_script(tmp_path: Path) -> None:
    settings = {
        "include": scripts(tmp_path),
        "extraPaths": [str(ROOT / "src")],
        "stubPath": str(HERE / "stubs"),
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportMissingTypeStubs": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path)]
    said = checked([*command, "--pythonpath", sys.executable], tmp_path)
    assert "right.py" not in said, said
    assert '"nothing"' in said


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    settings = {
        "include": [str(ROOT / "examples")],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "reportMissingImports": False,  # each example names what it needs
        "reportMissingModuleSource": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path)]
    said = checked([*command, "--pythonpath", sys.executable], tmp_path)
    assert "0 errors, 0 warnings" in said, said


def test_the_script_uses_every_verb() -> None:
    """Fails for a new verb: add a line with its `assert_type` to every_verb.py."""
    tree = ast.parse(SCRIPT.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    tables = (weir.Database, weir.Table, *weir.Table.__bases__)
    verbs = {
        name
        for cls in (*tables, weir.TableWriter, weir.ShardWriter, weir.Shard, weir.Scan, weir.Loader)
        for name, value in vars(cls).items()
        if not name.startswith("_") and callable(value)
    } | {verb.__name__ for verb in (*VERBS["weir"], *VERBS["weir.spark"]) if callable(verb)}
    classes = {"BulkReport", "Consumer", "KeepReport"}
    assert sorted(verbs - used - set(NOT_FOR_USERS) - classes) == []
