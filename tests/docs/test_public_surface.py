"""What `import weir` shows: one sorted list, each name documented, every signature typed."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weir
import weir.aio
import weir.spark
from weir.search.options import SearchOptions

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()


def public() -> Iterator[tuple[str, object]]:
    """Every public name of `weir`, `weir.aio` and `weir.spark`."""
    for name in weir.__all__:
        yield name, getattr(weir, name)
    for name in weir.aio.__all__:
        yield f"aio.{name}", getattr(weir.aio, name)
    for name in weir.spark.__all__:
        yield f"spark.{name}", getattr(weir.spark, name)


def functions() -> Iterator[tuple[str, Callable]]:
    """Every public function, and every public method of every public class."""
    for name, found in public():
        if inspect.isfunction(found):
            yield name, found
        if not inspect.isclass(found):
            continue
        own = [cls for cls in found.__mro__ if cls.__module__.startswith("weir")]
        members = {name: value for cls in reversed(own) for name, value in vars(cls).items()}
        for attribute, value in members.items():
            if attribute.startswith("_") and attribute not in ("__init__", "__iter__"):
                continue
            bare = value.fget if isinstance(value, property) else value
            bare = inspect.unwrap(getattr(bare, "__func__", bare))
            if inspect.isfunction(bare):
                yield f"{name}.{attribute}", bare


FUNCTIONS = dict(functions())


RULE = re.compile(r"\b[A-Z]-\d+[a-z]?\b")


def test_no_docstring_of_the_public_surface_cites_a_rule_by_its_number() -> None:
    """A caller does not know the rules; a comment within the code may cite them."""
    members = {
        f"{name}.{attribute}": inspect.getattr_static(found, attribute)
        for name, found in public()
        if inspect.isclass(found)
        for attribute in dir(found)
        if not attribute.startswith("_")
    }
    told = {
        name: RULE.findall(found.__doc__)
        for name, found in (dict(public()) | members).items()
        if isinstance(found.__doc__, str) and RULE.search(found.__doc__)
    }
    assert told == {}


def test_no_signature_shows_the_inside_of_a_default_or_a_parameter_of_the_simulator() -> None:
    verbs = {**FUNCTIONS, **dict(public())}
    shown = {n: inspect.signature(verb) for n, verb in verbs.items() if inspect.isfunction(verb)}
    made = {name for name in shown if name.endswith(".__init__")}  # by the verbs, not by users
    assert [name for name in shown.keys() - made if "env" in shown[name].parameters] == []
    assert [name for name, found in shown.items() if " object at 0x" in str(found)] == []


def test_public_names_are_one_sorted_list_without_doubles() -> None:
    assert weir.__all__ == sorted(set(weir.__all__))


@pytest.mark.parametrize("name", weir.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    found = getattr(weir, name)
    if inspect.isclass(found) and issubclass(found, Exception):
        assert "::: weir.errors" in REFERENCE
    else:
        assert f"::: weir.{name}\n" in REFERENCE
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_public_signature_has_any_or_open_options(name: str) -> None:
    signature = inspect.signature(FUNCTIONS[name])
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        assert parameter.kind is not parameter.VAR_KEYWORD, f"{name} takes **{parameter.name}"
        assert parameter.annotation is not parameter.empty, f"{name}: {parameter.name}"
        assert not re.search(r"\bAny\b", str(parameter.annotation)), f"{name}: {parameter}"
    if not name.endswith(".__init__"):
        assert signature.return_annotation is not signature.empty, name
        assert not re.search(r"\bAny\b", str(signature.return_annotation)), name


def test_no_message_names_a_rule_by_its_code() -> None:
    code = re.compile(r"\([FGKWCSMLPOX]-\d+[a-z]?\)")
    for path in sorted(Path(weir.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }  # docstrings, which link the rules
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                told = node.value not in texts and code.search(node.value)
                assert not told, f"{path.name}:{node.lineno}: {node.value}"


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("Table.search", set()),
        ("ShardWriter.search", set()),
        ("Table.hybrid_search", {"distance_range"}),
        ("aio.Table.search", set()),
        ("aio.Table.hybrid_search", {"distance_range"}),
    ],
)
def test_every_search_takes_the_options_that_one_class_lists(name: str, lacking: set[str]) -> None:
    """`SearchOptions` says what each means, its default and what it may be."""
    taken = inspect.signature(FUNCTIONS[name]).parameters
    for option in dataclasses.fields(SearchOptions):
        if option.name not in lacking:
            parameter = taken[option.name]
            assert (parameter.default, parameter.annotation) == (option.default, option.type)
