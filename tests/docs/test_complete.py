"""The docs lack nothing that the program has: options, errors, commands, events, record keys."""

import re
from dataclasses import fields

import pytest

import weir
from tests.docs import facts
from tests.docs.blocks import ROOT, pages
from tools import docs_tables, tidy


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of the tables below a heading, by the code in their first cell."""
    below = re.split(r"^#+ ", text, flags=re.MULTILINE)
    part = next(b for b in below if b.startswith(heading))
    found = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells[1:]
    return found


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls",
    [
        weir.WriterConfig,
        weir.CompactionPolicy,
        weir.KeepPolicy,
        weir.CheckpointSchedule,
        weir.IndexConfig,
    ],
)
def test_every_setting_is_on_the_configuration_page(cls):
    made = page("reference/configuration.md") + docs_tables.configuration()
    for field in fields(cls):
        assert f"| `{field.name}` |" in made, f"{cls.__name__}.{field.name}"


def test_every_option_of_a_call_is_on_the_configuration_page_with_its_default():
    told = rows(page("reference/configuration.md"), "Options of calls")
    missing = []
    for where, name, default in facts.options():
        calls, _, meaning = told.get(name, ["", "", ""])
        shown = "none" if callable(default) else docs_tables.shown(default)
        if f"`{where}`" not in calls or not meaning:
            missing.append((where, name))
        elif shown not in told[name][1]:
            missing.append((where, name, shown))
    assert missing == []


def test_no_option_is_told_of_that_no_call_has():
    told = rows(page("reference/configuration.md"), "Options of calls")
    real = {(name, where) for where, name, _ in facts.options()}
    for name, (calls, *_) in told.items():
        for where in re.findall(r"`([^`]+)`", calls):
            assert (name, where) in real, f"{where} has no option {name}"


SPARK = ("spark", "spark-write", "spark-upkeep", "spark-sql")


def test_every_option_of_the_spark_source_is_in_the_guide():
    text = "".join(page(f"guides/{name}.md") for name in SPARK).lower()
    names = facts.spark_options()
    assert len(names) > 15
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


# -- errors ----------------------------------------------------------------------------------------


def test_everything_an_error_carries_is_in_the_playbook():
    text = page("guides/failures.md")
    names = facts.error_attributes()
    assert "maybe_written" in names
    assert [n for n in sorted(names) if not re.search(rf"`(?:error)?\.?{n}`", text)] == []


# -- the command line ------------------------------------------------------------------------------


CALL = re.compile(r"`weir ([a-z][^`]*)`|^\$ weir (.*)$", re.MULTILINE)


def flags(command) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


def test_every_command_and_flag_is_explained_on_the_command_line_page():
    made = page("reference/cli.md") + docs_tables.command_line()
    sections = dict(
        re.findall(r"^## (weir [^\n]+)\n(.*?)(?=^## |\Z)", made, re.MULTILINE | re.DOTALL)
    )
    for name, command in docs_tables.commands():
        assert command.help, name
        for option in command.params:
            assert option.help, f"{name}: {option.name}"
            for flag in option.opts if option.param_type_name == "option" else ():
                assert f"`{flag}`" in sections[name], f"{name}: {flag}"


def test_flags_of_the_command_itself_are_on_the_command_line_page():
    text = page("reference/cli.md")
    for option in docs_tables.group().params:
        for flag in option.opts:
            assert flag in text, flag


def test_no_command_or_flag_is_told_of_that_does_not_exist():
    known = {
        name.removeprefix("weir "): {
            f for o in command.params for f in (*o.opts, *o.secondary_opts)
        }
        for name, command in docs_tables.commands()
    }
    groups = {name.partition(" ")[0] for name in known if " " in name}
    everywhere = {"--help", "-h", *(f for o in docs_tables.group().params for f in o.opts)}
    for path in pages():
        for call in re.findall(
            r"`weir ([a-z][^`]*)`|^\$ weir (.*)$", path.read_text(), re.MULTILINE
        ):
            words = next(filter(None, call)).partition("  #")[0].split()
            name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
            assert name in known or name in groups, f"{path.name}: weir {' '.join(words)}"
            for flag in (w for w in words if re.match(r"--?[a-zA-Z]", w)):
                assert flag in known.get(name, set()) | everywhere, f"{path.name}: {name} {flag}"


# -- events ----------------------------------------------------------------------------------------


def test_every_log_message_begins_with_the_name_of_an_event():
    found = facts.messages()
    assert len(found) > 30
    for module, line, _, text in found:
        assert facts.EVENT.fullmatch(text.split()[0]), f"{module}:{line}: {text}"


def test_events_and_their_levels_are_those_of_the_operations_guide():
    told = rows(page("guides/operations.md"), "Events in the log")
    assert set(told) == set(facts.events())
    for event, levels in facts.events().items():
        assert set(told[event][0].split(", ")) == levels, event
        assert told[event][1], event


# -- records ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The keys of each kind of record."""
    folder = tmp_path_factory.mktemp("records")
    facts.every_record(folder)
    return facts.record_keys(folder)


def test_keys_of_every_record_are_those_of_the_format_page(records):
    text = page("format/weir-records.md")
    assert len(records) >= 9
    for kind, keys in records.items():
        assert set(rows(text, f"`{kind}`")) == keys, kind


def test_every_folder_of_weir_is_on_the_layout_page():
    text = page("reference/layout.md")
    names = facts.folders()
    assert len(names) > 10
    assert [name for name in sorted(names) if f"_weir/{name}" not in text] == []


def test_there_is_no_page_of_a_record_that_the_program_does_not_write(records):
    told = re.findall(r"^### `([^`]+)`$", page("format/weir-records.md"), re.MULTILINE)
    assert set(told) == set(records)


# -- names -----------------------------------------------------------------------------------------


CONSTANTS = {
    name
    for path in facts.SOURCES
    for name in re.findall(r'"(weir\.\w+)"', path.read_text(encoding="utf-8"))
}
"""Properties of base commits, spans and their attributes, an option of Spark: not Python names."""


def test_names_of_the_program_that_the_docs_use_exist():
    for path in [*pages(), *(ROOT / n for n in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]:
        for name in re.findall(r"`(weir(?:\.\w+)+)(?=[`(])", path.read_text()):
            assert name in CONSTANTS or facts.resolves(name), f"{path.name}: {name}"


def test_modules_that_the_docs_name_by_their_path_exist():
    listed = {p.relative_to(ROOT / "src/weir").as_posix() for p in facts.SOURCES}
    for path in [*pages(), *(ROOT / n for n in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]:
        for name in re.findall(r"`(?:src/weir/)?(\w+(?:/\w+)*\.py)`", path.read_text()):
            real = name in listed or (ROOT / name).exists()
            assert real or "/" not in name, f"{path.name}: {name}"


def test_names_and_pages_that_docstrings_cite_exist():
    for path in facts.SOURCES:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"`(weir(?:\.\w+)+)`", text):
            assert name in CONSTANTS or facts.resolves(name), f"{path.name}: {name}"
        for name in re.findall(r"(?:docs|shared)/[\w/.-]+\.md", text):
            assert (ROOT / name).exists(), f"{path.name}: {name}"


# -- the architecture ------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_way_of_a_row_leads_through_files_and_names_that_exist():
    way = ARCHITECTURE.partition("## Which module")[0]
    steps = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` `([\w.]+)` \|", way, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    opening = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", way)
    for path, name in [(p, n) for _, p, n in steps] + opening:
        assert facts.resolves(f"weir.{path[:-3].replace('/', '.')}.{name}"), f"{path}: {name}"


def test_the_layers_are_those_that_are_enforced():
    part = ARCHITECTURE.partition("## Layers")[2].partition("\n\nBeside")[0]
    told = [set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in part.splitlines()[4:]]
    assert [layer for layer in told if layer] == [set(layer) for layer in tidy.LAYERS]


LONG = {
    "benchmarks.md",
    "format/weir-records.md",
    "internals/garbage-collection.md",
    "internals/rules.md",
}
"""Generated, or one list of everything."""


def test_a_page_is_short_enough_to_be_read():
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        assert name in LONG or len(path.read_text(encoding="utf-8").splitlines()) <= 200, name


def test_pages_for_users_name_no_rule_by_its_code():
    code = re.compile(r"\b[FGKWCSMLPOX]-\d+[a-z]?\b")
    for folder in ("guides", "howto", "reference"):
        for path in sorted((ROOT / "docs" / folder).glob("*.md")):
            assert code.findall(path.read_text(encoding="utf-8")) == [], path.name
