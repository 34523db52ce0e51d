"""`import weir` costs next to nothing, and exposes the public names and nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import weir

SOURCE = Path(weir.__file__).read_text()


def test_every_public_name_is_loaded_from_where_type_checkers_see_it() -> None:
    tree = ast.parse(SOURCE)
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "weir"  # packages: weir.aio, weir.spark
    }
    assert seen == weir._HOMES
    assert sorted(seen) == sorted(weir.__all__)
    assert all(getattr(weir, name) is not None for name in weir.__all__)


def test_dir_shows_the_public_names_only() -> None:
    assert dir(weir) == sorted([*weir.__all__, "aio", "spark"])


def test_importing_weir_loads_neither_lance_nor_arrow_nor_pandas() -> None:
    """The limit is 1.15 times `import lance`; what is not loaded costs nothing at all."""
    program = "import sys, weir; print(*sorted({'lance','pyarrow','pandas'} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(weir, "Tabel")
