"""One picture for each store: how weir compares with the best peer and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WEIR, PEER, FLOOR, INK = "#2f7ed8", "#c0504d", "#8a8a8a", "#808080"
"""Colours of the sides and of the text, readable on white and on black."""
TITLES = {"local": "local disk", "s3": "SeaweedFS", "far": "SeaweedFS, 10 ms away"}


def draw(results: list[dict[str, Any]], folder: Path) -> list[str]:
    """Write the pictures and return their names."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "weir",  # the same figures produce the same bytes
            "svg.fonttype": "none",
            "font.size": 9,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for where, title in TITLES.items():
        bars = [b for b in map(_bar, (r for r in results if r["where"] == where)) if b]
        if bars:
            name = f"bench-{where}.svg"
            _draw_one(bars, title, folder / name)
            names.append(name)
    return names


def _bar(result: dict[str, Any]) -> tuple[str, list[tuple[str, float, str]]] | None:
    """The speed of each side relative to weir's."""
    weir = result["weir"]
    if not weir:
        return None
    sides = [("floor", result["floor"], FLOOR)]
    peers = result["peers"].items()
    sides += [(s, v, PEER) for s, v in peers if not s.startswith(("weir", "at "))]
    lower = result["better"] == "lower"
    made = [(s, (v / weir) if lower else (weir / v), colour) for s, v, colour in sides if v]
    return (result["workload"], made) if made else None


def _draw_one(bars: list[tuple[str, list[tuple[str, float, str]]]], title: str, path: Path) -> None:
    from matplotlib import pyplot as plt

    height = 0.9 + 0.34 * sum(len(sides) + 0.6 for _, sides in bars)
    figure, axes = plt.subplots(figsize=(8.2, height))
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    at = 0.0
    places, labels = [], []
    for workload, sides in bars:
        axes.text(
            0.0, at - 0.62, workload, fontsize=9, fontweight="bold", color=INK,
            transform=axes.get_yaxis_transform(), ha="left", va="center",
        )  # fmt: skip
        for side, ratio, colour in sides:
            axes.barh(at, ratio - 1, left=1, color=colour, height=0.7)
            shown = f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.2f} x"
            axes.annotate(
                shown, (ratio, at), xytext=(4 if ratio >= 1 else -4, 0), fontsize=8, color=INK,
                textcoords="offset points", va="center", ha="left" if ratio >= 1 else "right",
            )  # fmt: skip
            places.append(at)
            labels.append(side)
            at += 1
        at += 0.9
    axes.set_yticks(places, labels)
    axes.set_xscale("log")
    low = min(ratio for _, sides in bars for _, ratio, _ in sides)
    high = max(ratio for _, sides in bars for _, ratio, _ in sides)
    axes.set_xlim(min(0.3, low / 2), max(3, high * 3))
    axes.set_ylim(at - 0.4, -1.2)
    axes.axvline(1, color=WEIR, linewidth=1.5)
    figure.suptitle(
        f"weir on {title}", fontsize=13, fontweight="bold", color=INK, x=0.01, ha="left"
    )
    axes.set_title(
        "speed of weir against each: right of the blue line weir is faster, left of it slower",
        fontsize=9, color=INK, loc="left", x=-0.02,
    )  # fmt: skip
    axes.set_xlabel("times as fast (1: equal) \N{RIGHTWARDS ARROW} better")
    axes.grid(axis="x", color=INK, alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, transparent=True)
    plt.close(figure)
