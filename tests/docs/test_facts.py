"""What the docs say about the code is true: settings, commands, errors, rules, links."""

import re
from dataclasses import fields

import pytest

import weir
from tests.docs.blocks import ROOT, pages
from tools import docs_tables, drawings, screens
from weir import errors


def test_every_setting_has_a_meaning_in_both_modes():
    told = docs_tables.docstrings()
    for field in fields(weir.WriterConfig):
        main, other = docs_tables.both_modes(told[field.name])
        assert main, field.name
        assert other, field.name
    assert docs_tables.writer_settings().count("\n") == len(fields(weir.WriterConfig)) + 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Bytes. Same in both modes.", ("Bytes.", "the same")),
        ("Rows. WAL-only: ignored.", ("Rows.", "ignored.")),
    ],
)
def test_the_meaning_of_a_setting_is_split_by_mode(text, parts):
    assert docs_tables.both_modes(text) == parts


def test_every_variable_of_the_environment_is_on_the_command_line_page():
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    product = {p: t for p, t in docs_tables.sources("src/weir").items() if "testing" not in p}
    names = {name for text in product.values() for name in re.findall(r"\bWEIR_[A-Z_]+", text)}
    assert names
    assert all(f"${name}" in page for name in names)


def test_the_page_of_examples_has_every_one_with_its_words():
    page = docs_tables.examples()
    files = sorted((ROOT / "examples").glob("*.py"))
    assert page.count("```python\n") == len(files)
    for path in files:
        words = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
        assert words.strip().splitlines()[0] in page


def error_classes():
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, weir.WeirError)
        and value is not weir.WeirError
    ]


def test_the_playbook_covers_every_error_and_no_other():
    page = (ROOT / "docs/guides/failures.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(
        cls.__name__ for cls in error_classes()
    )


def test_every_kind_of_error_is_in_the_playbook():
    page = (ROOT / "docs/guides/failures.md").read_text()
    for cls in error_classes():
        assert f"`{cls.kind}`" in page


def test_rules_are_found_and_each_is_kept_somewhere_and_tried_by_a_test():
    rules = docs_tables.rules()
    assert len(rules) > 70
    assert len({rule for rule, _ in rules}) == len(rules)
    alone = [r for r, _ in rules if not (docs_tables.cited(r) and docs_tables.named(r))]
    assert alone == []


def test_no_test_claims_a_rule_that_does_not_exist():
    known = {rule.replace("-", "").lower() for rule, _ in docs_tables.rules()}
    family = "".join(docs_tables.FAMILIES).lower()
    for path, text in docs_tables.sources("tests").items():
        for number, letter in re.findall(rf"def test_([{family}]\d+)([a-z]?)_", text):
            assert number + letter in known or number in known, f"{path}: {number}{letter}"


def test_the_table_of_rules_names_tests_that_pytest_would_run():
    for rule, _ in docs_tables.rules():
        for path, names in docs_tables.named(rule):
            assert (ROOT / "tests" / path).name.startswith("test_"), path
            assert len(set(names)) == len(names), path  # a second test of that name hides the first


@pytest.mark.parametrize("name", sorted(drawings.DRAWINGS))
def test_the_committed_drawing_is_what_the_tool_draws(name):
    # If this fails, run: python tools/drawings.py
    assert (drawings.FOLDER / name).read_text() == drawings.DRAWINGS[name]()


@pytest.mark.parametrize("name", sorted(screens.SCREENS))
def test_the_committed_screen_is_what_the_command_draws(name):
    # If this fails, run: python tools/screens.py
    assert (screens.FOLDER / name).read_text(encoding="utf-8") == screens.SCREENS[name]()


@pytest.mark.parametrize("page", docs_tables.MEASURED)
def test_figures_of_a_page_are_those_of_the_last_benchmark(page):
    # If this fails, run: python tools/docs_tables.py --readme
    _, begun, rest = (ROOT / page).read_text(encoding="utf-8").partition(docs_tables.BEGIN)
    shown, ended, _ = rest.partition(docs_tables.END)
    assert begun
    assert ended
    assert shown in ("", docs_tables.MEASURED[page]())


def test_links_inside_the_repository_lead_somewhere():
    for page in pages():
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"


def test_files_that_the_docs_name_exist():
    for page in pages():
        for name in re.findall(
            r"`((?:examples|tools|docs|tests)/[\w/.-]+\.\w+)(?:::\w+)?`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)}: {name}"
