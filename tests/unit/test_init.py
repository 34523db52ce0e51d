"""`import weir` costs next to nothing, and exposes the public names and nothing else."""

import ast
import os
import re
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
    assert dir(weir) == sorted([*weir.__all__, "aio", "otel", "spark"])


def test_importing_weir_loads_neither_lance_nor_arrow_nor_pandas() -> None:
    """The limit is 1.15 times `import lance`; what is not loaded costs nothing at all."""
    program = "import sys, weir; print(*sorted({'lance','pyarrow','pandas'} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


def test_lance_is_quiet_about_indexes_if_it_is_imported_after_weir() -> None:
    program = "import os, weir, lance; print(os.environ['LANCE_LOG'])"
    environment = {name: value for name, value in os.environ.items() if name != "LANCE_LOG"}
    for said in (None, "debug"):
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env=environment if said is None else {**environment, "LANCE_LOG": said},
        )  # fmt: skip
        assert ran.stdout.strip() == (said or "warn,lance::index=off")


def test_the_page_of_settings_says_how_lance_is_quiet_if_it_is_imported_first() -> None:
    """Lance reads the variable once: nothing that weir does later can change it."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    source = Path(weir.__file__).read_text()
    [(name, value)] = re.findall(r'^default_variable\("(\w+)", "(.*)"\)$', source, re.MULTILINE)
    assert f"`{name}={value}`" in page.read_text()


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(weir, "Tabel")
