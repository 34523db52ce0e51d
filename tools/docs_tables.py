"""The parts of the documentation that are generated from the code when the site is built.

- reference/configuration.md: the classes of settings, from their docstrings
- reference/metrics.md: the registry of metrics
- reference/cli.md: the help of every command
- examples.md: the code of examples/
- internals/invariants.md: each rule, and the modules and tests that name it

A hook of mkdocs; `python tools/docs_tables.py reference/cli.md` prints one page.
`python tools/docs_tables.py --readme` writes the figures of README.md from docs/benchmarks.json.
"""

import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import click

from weir.cli.app import weir as app
from weir.config import IndexConfig, WriterConfig
from weir.meters import METRICS
from weir.upkeep.compact.policy import CompactionPolicy
from weir.upkeep.due import CheckpointSchedule, KeepPolicy

ROOT = Path(__file__).resolve().parent.parent
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RULE = re.compile(r"^\*\*([A-Z]-\d+[a-z]?) ([^*]+)\*\*", re.MULTILINE)
FAMILIES = {
    "F": "Fencing",
    "K": "Checkpoints",
    "W": "The gap",
    "C": "Clones and resharding",
    "S": "The separate WAL store",
    "G": "Garbage collection",
    "M": "Writer, MemTable, flush",
    "L": "Reads and compaction",
    "P": "Spark",
    "O": "Writes that look first",
    "X": "Other programs on the same table",
}


def docstrings(cls: type = WriterConfig) -> dict[str, str]:
    """The text below each field of a dataclass."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8"))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__).body
    found = {}
    for field, text in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def both_modes(text: str) -> tuple[str, str]:
    """What a setting means with a MemTable, and WAL-only."""
    if text.endswith("Same in both modes."):
        return text.removesuffix("Same in both modes.").strip(), "the same"
    before, found, after = text.partition("WAL-only: ")
    if found:
        return before.strip(), after.strip()
    return text, "the same"


def shown(value: Any) -> str:
    """A default value for people to read."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return f"{value >> 30} GiB" if value % (1 << 30) == 0 else f"{value >> 20} MiB"
    if isinstance(value, float):
        return f"{value:g} s"
    return f"`{value!r}`"


def writer_settings() -> str:
    """The table of `WriterConfig`."""
    told = docstrings()
    lines = ["| setting | default | with a MemTable | WAL-only |", "| --- | --- | --- | --- |"]
    for field in fields(WriterConfig):
        assert field.default is not MISSING
        main, other = both_modes(told[field.name])
        lines.append(f"| `{field.name}` | {shown(field.default)} | {main} | {other} |")
    return "\n".join(lines) + "\n"


def plain_settings(cls: type) -> str:
    """The table of a dataclass whose fields mean the same in both modes."""
    told = docstrings(cls)
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for field in fields(cls):
        default = "required" if field.default is MISSING else shown(field.default)
        lines.append(f"| `{field.name}` | {default} | {told[field.name]} |")
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """The tables of settings, each below its class."""
    return "\n".join(
        (
            f"## WriterConfig\n\n{writer_settings()}",
            f"## IndexConfig\n\n{plain_settings(IndexConfig)}",
            f"## KeepPolicy\n\n{plain_settings(KeepPolicy)}",
            f"## CheckpointSchedule\n\n{plain_settings(CheckpointSchedule)}",
            f"## CompactionPolicy\n\n{plain_settings(CompactionPolicy)}",
        )
    )


def metrics() -> str:
    """The registry of metrics, and the bounds of its histograms."""
    lines = ["| metric | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = "; ".join(
            f"`{name}`: {', '.join(f'`{value}`' for value in values)}"
            for name, values in metric.labels.items()
        )
        lines.append(
            f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |"
        )
    lines += ["", "Histograms, and the upper bounds of their buckets:", ""]
    lines += ["| histogram | bounds |", "| --- | --- |"]
    for metric in METRICS:
        if metric.buckets:
            bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
            lines.append(f"| `{metric.name}` | {bounds} |")
    return "\n".join(lines) + "\n"


def group() -> click.Group:
    """The command `weir`, with its subcommands and its own flags."""
    return app


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command; groups such as `checkpoint` give one for each subcommand."""
    context = click.Context(group())
    for name in group().list_commands(context):
        command = group().get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            default = getattr(command, "default", None)
            for part, each in command.commands.items():
                yield f"weir {name}" if part == default else f"weir {name} {part}", each
        else:
            yield f"weir {name}", command


def command_line() -> str:
    """The arguments and options of each command."""
    parts = []
    for name, command in sorted(commands()):
        text = " ".join((command.help or "").split())
        example = (command.epilog or "").removeprefix("Example: ")
        lines = [f"## {name}", "", text, "", f"    {example.strip()}", ""]
        lines += ["| argument or option | |", "| --- | --- |"]
        for option in command.params:
            names = ", ".join(f"`{n}`" for n in (*option.opts, *option.secondary_opts))
            if option.param_type_name == "argument":
                names = f"`{(option.metavar or option.name).upper()}`"
            elif isinstance(option.type, click.Choice):
                names += " " + "\\|".join(option.type.choices)
            elif option.metavar:
                names += f" {option.metavar}"
            default = option.default
            plain = isinstance(default, str | int | float) and not isinstance(default, bool)
            tail = f" Default `{default}`." if plain else ""
            lines.append(f"| {names} | {getattr(option, 'help', '')}{tail} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


@cache
def sources(folder: str) -> dict[str, str]:
    """The Python files below `folder`, by relative path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {str(p.relative_to(ROOT / folder)): p.read_text(encoding="utf-8") for p in paths}


@cache
def _citations() -> dict[str, list[str]]:
    """The modules of the product that name a rule, by rule."""
    found: dict[str, list[str]] = {}
    for path, text in sources("src/weir").items():
        if not path.startswith("testing/"):
            for rule in set(re.findall(r"(?<![\w-])[A-Z]-\d+[a-z]?(?![\w-])", text)):
                found.setdefault(rule, []).append(path)
    return found


@cache
def _tests() -> list[tuple[str, list[tuple[str, str]]]]:
    """By file, the tests that are named after a rule: its number, and the rest of the name."""
    test = re.compile(r"^ *(?:async )?def test_([a-z]\d+[a-z]?)_(\w+)", re.MULTILINE)
    return [(path, test.findall(text)) for path, text in sources("tests").items()]


def cited(rule: str) -> list[str]:
    """Modules of the product that name the rule, in a comment or a docstring."""
    return _citations().get(rule, [])


def named(rule: str) -> list[tuple[str, list[str]]]:
    """Tests whose names contain the rule, by file: test_f9_..."""
    # test_c9a_... and test_c9b_... both test C-9, but K-1b is a rule of its own.
    number = rule.replace("-", "").lower()
    numbers = {number} if rule == "K-1" else {number, *(number + letter for letter in LETTERS)}
    found = ((path, [name for one, name in tests if one in numbers]) for path, tests in _tests())
    return [(path, names) for path, names in found if names]


def rules() -> list[tuple[str, str]]:
    """Number and title of every rule."""
    text = (ROOT / "docs/internals/rules.md").read_text(encoding="utf-8")
    return [(m[1], " ".join(m[2].split()).rstrip(".:")) for m in RULE.finditer(text)]


def invariants() -> str:
    """Each rule with the modules that keep it and the tests that try to break it."""
    lines: list[str] = []
    for letter, family in FAMILIES.items():
        lines += [f"## {family}", "", "| rule | kept in `src/weir` | tried in `tests` |"]
        lines.append("| --- | --- | --- |")
        for rule, title in rules():
            if rule[0] != letter:
                continue
            kept = "<br/>".join(f"`{path}`" for path in cited(rule)) or "-"
            tried = "<br/>".join(
                f"`{path}`: " + "; ".join(name.replace("_", " ") for name in names)
                for path, names in named(rule)
            )
            lines.append(f"| **{rule}** {title} | {kept} | {tried or '-'} |")
        lines.append("")
    return "\n".join(lines)


def examples() -> str:
    """The code of every example, below its docstring."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        words = ast.get_docstring(tree) or ""
        code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip()
        title = path.stem.replace("_", " ").capitalize()
        parts.append(f"## {title}\n\n{words}\n\n```python\n{code}\n```\n")
    return "\n".join(parts)


def put_if_absent() -> str:
    """The figures of put-if-absent, from docs/benchmarks.json."""
    results = json.loads((ROOT / "docs/benchmarks.json").read_text(encoding="utf-8"))
    lines = [
        "| what | store | weir, if absent | weir, plain | obstore, if absent | obstore, plain |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for one in results:
        if one["workload"].startswith("put-if-absent"):
            name = one["workload"].partition("plain put")[2].strip(", ") or "1 thread, p50"
            peers = one["peers"]
            found = (
                one["weir"],
                peers.get("weir, plain put"),
                peers.get("obstore, if absent"),
                one["floor"],
            )
            cells = ("-" if value is None else f"{_shown(value)} {one['unit']}" for value in found)
            place = {"local": "local disk", "s3": "SeaweedFS", "far": "S3, 10 ms"}[one["where"]]
            lines.append(f"| {name} | {place} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


DOORS = (
    ("`table.writer()`, `put`", "front door, 1-row dicts, {}", "weir", "threads"),
    ("the same, 4 shards", "front door, 4 shards, 1-row dicts, {}", "weir", "threads"),
    ("`shard.writer()`, `put`", "front door, 1-row dicts, {}", "shard's writer", "threads"),
    (
        "the same, of ready batches",
        "front door, 1-row dicts, {}",
        "shard's writer, ready batches",
        "threads",
    ),
    ("`weir.aio`, `aput`", "front door, 1-row dicts, {}", "weir", "tasks"),
    ("the same, 4 shards", "front door, 1-row dicts, {}", "4 shards", "tasks"),
    ("bare asyncio, no checks", "front door, 1-row dicts, {}", "floor", "tasks"),
)
"""The doors (ways to put): name, workload, side, and whether threads or tasks put."""
CROWDS = {
    "threads": ("1 thread", "16 threads", "64 threads"),
    "tasks": ("256 tasks", "2,000 tasks"),
}
PLACES = {"local": "local disk", "s3": "SeaweedFS", "far": "S3, 10 ms"}
HEAD = 2
THOUSAND = 1000
NOTHING = "Not among the figures of the last `make bench`.\n"
"""Written in the place of a table without figures."""


def doors() -> str:
    """Durable puts per second of every door, as far as they were measured."""
    measured = {(one["workload"], one["where"]): one for one in _results()}
    columns = [crowd for crowds in CROWDS.values() for crowd in crowds]
    lines = ["| durable puts/s of one row | | " + " | ".join(columns) + " |"]
    lines.append("| --- | --- |" + " --: |" * len(columns))
    for where, place in PLACES.items():
        for door, workload, side, kind in DOORS:
            cells = []
            for crowd in columns:
                one = (
                    measured.get((workload.format(crowd), where)) if crowd in CROWDS[kind] else None
                )
                value = None if one is None else _side(one, side)
                cells.append("" if value is None else f"{value:,.0f}")
            if any(cells):
                lines.append(f"| {door} | {place} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" if len(lines) > HEAD else NOTHING


def many_shards() -> str:
    """The cost of verbs by number of shards, as far as it was measured."""
    lines = ["| | 1,024 shards | beside | ratio |", "| --- | --: | --- | --: |"]
    for one in _results():
        if one["workload"].startswith("1,024 shards") and one["weir"] is not None:
            beside = ", ".join(
                f"{name}: {v:,.4g} {one['unit']}" for name, v in one["peers"].items()
            )
            ratio = "" if one["ratio"] is None else f"{one['ratio']:.3g}"
            name = one["workload"].removeprefix("1,024 shards, ")
            lines.append(f"| {name} | {one['weir']:,.4g} {one['unit']} | {beside} | {ratio} |")
    return "\n".join(lines) + "\n" if len(lines) > HEAD else NOTHING


def _results() -> list[Any]:
    found: list[Any] = json.loads((ROOT / "docs/benchmarks.json").read_text(encoding="utf-8"))
    return found


def _side(one: Any, side: str) -> float | None:
    found: float | None = one[side] if side in ("weir", "floor") else one["peers"].get(side)
    return found


PAGES = {
    "examples.md": examples,
    "reference/configuration.md": configuration,
    "reference/metrics.md": metrics,
    "reference/cli.md": command_line,
    "internals/invariants.md": invariants,
}


BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
PUT = "durable put, 1 row, 1 thread"
SCAN = "merged scan, 2M base rows + 4 x 50k SSTables"


def figures() -> str:
    """Two results of docs/benchmarks.json, in words."""
    found = {(one["workload"], one["where"]): one for one in _results()}
    put, scan = found[(PUT, "s3")], found[(SCAN, "s3")]
    times, share = put["weir"] / put["floor"], scan["weir"] / scan["floor"]
    return (
        f"Two figures of [`make bench`](docs/benchmarks.md) on a local S3 server: a durable put is"
        f" one request and takes {times:.1f} times as long as\nthe bare one ({_shown(put['weir'])}"
        f" ms); a fresh scan of 2.2 million rows takes {share:.1f} times as long as reading the"
        " base table alone.\n"
    )


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= THOUSAND else f"{value:.4g}"


MEASURED: dict[str, Callable[[], str]] = {
    "README.md": figures,
    "docs/internals/put-if-absent.md": put_if_absent,
    "docs/guides/writing.md": doors,
    "docs/guides/reading.md": many_shards,
}
"""Files with figures of docs/benchmarks.json, and the function that makes each."""


def write_readme() -> None:
    """Put the figures between the markers in README.md and some pages."""
    for name, make in MEASURED.items():
        path = ROOT / name
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        path.write_text(f"{before}{BEGIN}{make()}{END}{after}", encoding="utf-8")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append the generated part; mkdocs calls this for each page."""
    make = PAGES.get(page.file.src_uri)
    return markdown if make is None else f"{markdown}\n{make()}"


def main() -> int:
    """Print the generated parts of the given pages, or write the figures of the README."""
    if sys.argv[1:] == ["--readme"]:
        write_readme()
        return 0
    for path in sys.argv[1:] or PAGES:
        print(PAGES[path]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
