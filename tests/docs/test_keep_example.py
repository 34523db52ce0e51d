"""The files of `examples/keep` and the page of metrics fit the program."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
import yaml

from tools import docs_tables
from weir import meters
from weir.cli.keep import keep
from weir.keep.policy import KeeperPolicy, load
from weir.meters import METRICS, Metric
from weir.upkeep.due import KeepPolicy

FOLDER = Path(__file__).parents[2] / "examples" / "keep"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
SERIES = {metric.name + suffix: metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}


def queries() -> Iterator[str]:
    """Every query of the dashboard and of the alert rules."""
    board = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_every_query_names_metrics_and_labels_that_exist() -> None:
    found = list(queries())
    assert len(found) > 25
    for query in found:
        names = re.findall(r"\bweir_\w+", query)
        assert names, query
        assert [name for name in names if name not in SERIES] == [], query
        labels = {label for name in names for label in SERIES[name].labels} | {"le"}
        for by in re.findall(r"\bby \(([^)]*)\)", query):
            assert {label.strip() for label in by.split(",")} <= labels, query


def test_every_alert_is_on_the_page_of_upkeep_with_its_metrics_and_bounds() -> None:
    """Its row names the metrics, each number that they are compared with, and how long it waits."""
    page = (FOLDER.parents[1] / "docs" / "howto" / "upkeep.md").read_text()
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    told = dict(re.findall(r"^\| `(Weir\w+)` \| (.*)$", page, re.MULTILINE))
    assert sorted(told) == sorted(rule["alert"] for rule in rules)
    for rule in rules:
        when, lasts, then = (cell.strip() for cell in told[rule["alert"]].split("|")[:3])
        for name in set(re.findall(r"\bweir_\w+", rule["expr"])):
            assert f"`{name}`" in when, rule
        for bound in re.findall(r"(?:>|==) (\d+)", rule["expr"]):
            assert re.search(rf"\b{bound}\b", when) or (bound == "0" and "ris" in when), rule
        waits = rule["for"].replace("m", " min").replace("h", " h") if "for" in rule else "at once"
        assert lasts == waits, rule
        assert then, rule


def unseen(metrics: Iterable[Metric]) -> list[str]:
    """Those that no query names; one whose name begins another's is not named by that."""
    names = {SERIES[name] for query in queries() for name in re.findall(r"\bweir_\w+", query)}
    return [metric.name for metric in metrics if metric not in names]


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    assert unseen(METRICS) == []
    assert unseen([Metric("weir_keep", "gauge", "tables", "Added.")]) == ["weir_keep"]


def test_every_metric_is_recorded_somewhere() -> None:
    """A name in the registry that nothing counts would be a line of zeroes on the dashboard."""
    source = FOLDER.parents[1] / "src" / "weir"
    others = [path for path in source.rglob("*.py") if path.name != "meters.py"]
    used = set(re.findall(r"\b[A-Z_]+\b", " ".join(path.read_text() for path in others)))
    known = {name for name, value in vars(meters).items() if isinstance(value, Metric)}
    assert len(known) == len(METRICS)
    assert known - used == set()


def test_every_metric_is_on_its_page_with_labels_and_bounds() -> None:
    made = docs_tables.metrics()
    for metric in METRICS:
        assert f"| `{metric.name}` | {metric.kind} | {metric.unit} |" in made
        for name, values in metric.labels.items():
            assert f"`{name}`: " + ", ".join(f"`{value}`" for value in values) in made
        if metric.buckets:
            bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
            assert f"| `{metric.name}` | {bounds} |" in made


def test_the_policy_of_the_example_is_the_default_and_some_examples() -> None:
    found = load(FOLDER / "policy.toml")
    plain, default = found.of("s3://lake/orders"), KeepPolicy()
    assert plain is not None
    assert plain.compact is not None
    assert (plain.compact.generations, plain.compact.bytes, plain.compact.entries) == (
        8, 256 << 20, 2_500,
    )  # fmt: skip
    assert default.compact is not None
    assert plain.compact.age == default.compact.age == "1h"
    assert (found.every, found.find, found.jobs) == ("1m", "5m", KeeperPolicy().jobs)
    assert found.of("s3://lake/imported_a") is None


@pytest.mark.parametrize("name", ["weir-keep.service", "deployment.yaml"])
def test_the_command_of_a_deployment_can_be_parsed(name: str) -> None:
    text = (FOLDER / name).read_text()
    if name.endswith(".yaml"):
        words = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["args"]
    else:
        line = re.search(r"^ExecStart=\S+/weir keep (.*)$", text, re.MULTILINE)
        assert line is not None
        words = line[1].split()
    command = keep.get_command(click.Context(keep), "run")
    assert command is not None
    made = command.make_context("run", list(words))
    assert made.params["roots"] == ("s3://lake",)
    assert made.params["listen"]
