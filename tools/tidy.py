"""House rules that no off-the-shelf linter checks: directions of imports, length of code, what a
test expects to raise.

`python tools/tidy.py` prints one line per finding and exits with 1 if there is any.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"types", "errors", "config", "env", "durations", "lazy", "meters", "pace"}),
    frozenset({"format"}),
    frozenset({"store"}),
    frozenset({"records", "keys"}),
    frozenset({"log", "lake"}),
    frozenset({"merge"}),
    frozenset({"search"}),
    frozenset({"shard"}),
    frozenset({"routing"}),
    frozenset({"read"}),
    frozenset({"upkeep"}),
    frozenset({"table"}),
    frozenset({"making"}),
    frozenset({"database"}),
    frozenset({"keep"}),
    frozenset({"aio", "spark", "otel", "scraping"}),
    frozenset({"cli"}),
)
"""A unit may import itself and units of lower layers; those of layer 0 also each other."""

LAYER_OF = {unit: level for level, units in enumerate(LAYERS) for unit in units}
TOP = LAYER_OF["spark"]  # units from this layer up use the facade, as users do
FACADE = ""  # weir/__init__.py: may import anything; only the top layers may import it
TESTING = "testing"  # for users' tests: may import the store; no part of the product imports it

ONLY_IN = {
    "obstore": frozenset({"store", "testing"}),
    "lance": frozenset({"format", "lake", "search"}),
    "simulator": frozenset(),  # beside the tests, not in the wheel
    "pyspark": frozenset({"spark", "pyspark_weir"}),
    "click": frozenset({"cli"}),
    "opentelemetry": frozenset({"otel"}),
}
"""Foreign packages and the units that may import them."""

BY_NAME = frozenset(
    {"__import__", "import_module", "importlib.import_module", "importlib.util.find_spec"}
)
"""Calls that import a module by name; the same directions apply to them. Only the facade, which
may import anything, may compute the name."""

FUNCTION_LINES_MAX = 70
LEFTOVER = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def unit_of(module: str) -> str:
    """The unit a module belongs to: `weir.store.retry` is part of `store`."""
    package, _, rest = module.partition(".")
    if package != "weir":
        return package
    unit = rest.partition(".")[0]
    return "cli" if unit == "__main__" else unit


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, anywhere in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            # In `from weir import store` the unit is the imported name.
            for alias in node.names:
                yield node.lineno, f"{node.module or ''}.{alias.name}"
            if node.level:
                yield node.lineno, "a relative name"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            yield node.lineno, named(node.args[0])


def named(argument: ast.expr) -> str:
    """The module that a call imports by name; of an f-string, only its literal start."""
    if isinstance(argument, ast.JoinedStr) and argument.values:
        argument = argument.values[0]
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    return "a computed name"


def may_import(importer: str, imported: str) -> bool:
    """Whether unit `importer` of weir may import unit `imported` of weir."""
    if importer in (FACADE, imported):
        return True
    if importer == TESTING:
        return imported in LAYERS[0] | {"format", "store"}
    if imported == TESTING:
        return False
    if imported not in LAYER_OF:  # a name that the facade exports
        return LAYER_OF[importer] >= TOP
    here, there = LAYER_OF[importer], LAYER_OF[imported]
    return there < here or here == there == 0


def check_imports(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports against the direction of layers, and foreign packages outside their units."""
    unit = unit_of(module)
    if module.startswith("weir.") and unit not in LAYER_OF and unit != TESTING:
        yield 1, f"unit {unit!r} is in no layer: add it to tools/tidy.py"
        return
    for line, name in imports(tree):
        package = name.partition(".")[0]
        if package == "a relative name":
            yield line, "relative import: write the whole name"
        elif package == "a computed name" and unit != FACADE:
            yield line, "import of a computed name: nobody can say which layer it is in"
        elif unit not in ONLY_IN.get(package, {unit}):
            homes = ", ".join(sorted(ONLY_IN[package]))
            yield line, f"{unit or 'weir'} imports {package}, which only {homes} may"
        elif package == "weir" and module.startswith("weir"):
            imported = unit_of(name)
            if not may_import(unit, imported):
                yield line, f"{unit} imports {imported or 'weir'}: against the direction of layers"


def check_lengths(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions that are too long. A module is as long as the one thing it does takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"


def check_leftovers(text: str) -> Iterator[tuple[int, str]]:
    """Notes to oneself."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := LEFTOVER.search(line):
            yield number, f"leftover {found.group()}: do it or write an issue"


NAMES_IN = "weir.format.paths"
OBJECT_NAME = re.compile(r"(?:^|/)(?:_weir|_mem_wal|_versions)(?:/|$)")


def check_names(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of stored objects that are built outside `NAMES_IN`, which builds and parses them."""
    if module == NAMES_IN:
        return
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = OBJECT_NAME.search(node.value)
            if found and id(node) not in texts:
                yield node.lineno, f"names {found.group()!r}: build it in {NAMES_IN}"


def check_raises(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Blocks of `pytest.raises` in which more than the named call may raise (also ruff's PT012).

    What follows it in the same `with` is opened and closed within it. A body that only raises is a
    test of those contexts.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.With | ast.AsyncWith):
            continue
        names = [ast.unparse(item.context_expr).partition("(")[0] for item in node.items]
        if "pytest.raises" not in names or isinstance(node.body[0], ast.Raise):
            continue
        if names[-1] != "pytest.raises" or isinstance(node.body[0], ast.With | ast.AsyncWith):
            yield node.lineno, "pytest.raises around other contexts: which call must raise?"


def check_source(module: str, text: str) -> list[tuple[int, str]]:
    """All findings in one module, as line and message."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [(error.lineno or 1, f"does not parse: {error.msg}")]
    found = [*check_imports(module, tree), *check_lengths(tree), *check_leftovers(text)]
    found += check_names(module, tree)
    # `from weir.store import a, b` is one finding.
    return sorted(set(found))


def check_tree(source: Path) -> list[str]:
    """All findings under `source`, the folder that holds the packages."""
    findings = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] not in ("weir", "pyspark_weir") or path.stem.endswith("_pb2"):
            continue
        module = ".".join(parts).removesuffix(".__init__")
        findings += [
            f"{path}:{line}: {message}"
            for line, message in check_source(module, path.read_text(encoding="utf-8"))
        ]
    return findings


def check_tests(folder: Path) -> list[str]:
    """All findings in the tests under `folder`."""
    return [
        f"{path}:{line}: {message}"
        for path in sorted(folder.rglob("*.py"))
        for line, message in check_raises(ast.parse(path.read_text(encoding="utf-8")))
    ]


def main() -> int:
    """Check src/ and tests/, and print the findings."""
    root = Path(__file__).resolve().parent.parent
    findings = check_tree(root / "src") + check_tests(root / "tests")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
