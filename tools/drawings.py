"""The drawings of docs/concepts.md, as SVG for light and dark mode: `python tools/drawings.py`.

They are committed, so the site loads no external script; `tests/docs` fails when they are stale.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "img"
STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #222 } .b { font-weight: 600 } .n { font-size: 12px }
rect, path, line { stroke: #555; fill: none; stroke-width: 1.4 } .store { fill: #d9efec }
.note { fill: #fdf3d6 } .bad { stroke: #c0392b } text.bad { fill: #c0392b; stroke: none }
.dash { stroke-dasharray: 5 4 }
marker path { fill: #555; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } rect, path, line { stroke: #999 }
.store { fill: #1f4a45 } .note { fill: #4d431c }
marker path { fill: #999 } .bad { stroke: #ff7b6b } text.bad { fill: #ff7b6b } }
</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>"""


def svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """A whole drawing."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(label)}">'
    )
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words at a position; | separates lines."""
    lines = words.split("|")
    top = y - (len(lines) - 1) * 8
    return "".join(
        f'<text class="{kind}" x="{x:g}" y="{top + 16 * i:g}" text-anchor="{anchor}">'
        f"{escape(line)}</text>"
        for i, line in enumerate(lines)
    )


def box(x: float, y: float, words: str, kind: str = "", width: float = 118) -> str:
    """A box of height 50 with words in it."""
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="50" rx="8"/>'
    return shape + text(x + width / 2, y + 30, words, "b" if kind else "")


def arrow(points: str, kind: str = "") -> str:
    """A line along the SVG path `points`, with an arrowhead at its end."""
    return f'<path class="{kind}" d="{points}" marker-end="url(#a)"/>'


def way_of_a_row() -> str:
    """From put to base, and the readers of each stage."""
    return svg(
        900,
        250,
        "The way of a row from put to the base table",
        [
            box(10, 20, "put"),
            box(160, 20, "group commit"),
            box(340, 20, "WAL entry|put-if-absent", "store"),
            box(520, 20, "acknowledged"),
            box(160, 110, "MemTable"),
            box(340, 110, "SSTable +|one manifest", "store"),
            box(520, 110, "base table|plain Lance", "store"),
            box(720, 110, "checkpoints,|clones", width=140),
            box(720, 20, "fresh reads, feed,|replay", width=140),
            box(340, 190, "garbage collection", width=298),
            arrow("M128 45 H158"),
            arrow("M278 45 H338"),
            arrow("M458 45 H518"),
            arrow("M219 70 V108"),
            arrow("M278 135 H338"),
            text(308, 128, "flush", "n"),
            arrow("M458 135 H518"),
            text(488, 128, "compact", "n"),
            arrow("M638 135 H718"),
            arrow("M400 20 V8 H790 V18", "dash"),
            arrow("M400 190 V162", "dash"),
            arrow("M579 190 V162", "dash"),
            arrow("M340 215 H325 V60 H338", "dash"),
        ],
    )


Message = tuple[int, int, str, str]
"""From, to, words, kind; a message from an actor to itself is a note."""


def sequence(label: str, who: Sequence[str], messages: Sequence[Message]) -> str:
    """A sequence diagram: actors side by side, messages from top to bottom."""
    step, gap, left = 36, 300, 110
    height = 70 + step * len(messages) + 20
    columns = [left + gap * i for i in range(len(who))]
    width = columns[-1] + 150
    parts = []
    for at, name in zip(columns, who, strict=True):
        parts.append(f'<line class="dash" x1="{at}" y1="56" x2="{at}" y2="{height - 10}"/>')
        kind = "store" if name == "store" else ""
        parts.append(box(at - 75, 6, name, kind, width=150))
    for number, (source, target, words, kind) in enumerate(messages):
        y = 84 + step * number
        start, end = columns[source], columns[target]
        if source == target:
            wide = 12 + 7.4 * len(words)
            x = min(max(start - wide / 2, 4.0), width - wide - 4.0)
            parts.append(
                f'<rect class="note {kind}" x="{x:g}" y="{y - 15:g}" width="{wide:g}" height="24"'
                ' rx="5"/>'
            )
            parts.append(text(x + wide / 2, y + 2, words, f"n {kind}"))
            continue
        parts.append(arrow(f"M{start} {y} H{end - (5 if end > start else -5)}", kind))
        parts.append(text((start + end) / 2, y - 6, words, f"n {kind}"))
    return svg(width, height, label, parts)


def opening() -> str:
    """Probe, claim, fence, validate, replay."""
    return sequence(
        "Writer B takes a shard over from writer A",
        ["writer A, epoch 4", "store", "writer B"],
        [
            (0, 1, "entries 11 and 12, acknowledged", ""),
            (2, 1, "probe the log: the tip is 12", ""),
            (2, 1, "claim: a manifest with epoch 5", ""),
            (2, 1, "fence at 13, put-if-absent", ""),
            (2, 1, "validate: still 5, above all that was collected", ""),
            (1, 2, "replay 11 and 12", ""),
            (0, 1, "entry 13, put-if-absent", ""),
            (1, 0, "exists already; the epoch is 5", "bad"),
            (0, 0, "FencedError, with the rows", "bad"),
            (2, 1, "entry 14, acknowledged", ""),
        ],
    )


def stalled_writer() -> str:
    """What would happen without the two locks."""
    return sequence(
        "A writer that sleeps through a takeover and a collection",
        ["writer A", "store", "writer B, collector"],
        [
            (0, 1, "entry 2, acknowledged", ""),
            (0, 0, "sleeps", ""),
            (2, 1, "B: takes over, fence at 3, entries 4 to 8, flush", ""),
            (2, 1, "collector: all up to 8 is flushed, delete", ""),
            (1, 1, "lock 1: the fence at 3 stays for 7 days", ""),
            (0, 1, "awake: entry 3, put-if-absent", ""),
            (1, 0, "without the lock: success", "bad"),
            (0, 0, "would acknowledge a row nobody reads", "bad"),
            (0, 1, "lock 2: before that, is it still my epoch?", ""),
            (1, 0, "no: FencedError", ""),
        ],
    )


DRAWINGS = {
    "way-of-a-row.svg": way_of_a_row,
    "opening.svg": opening,
    "stalled-writer.svg": stalled_writer,
}


def main() -> int:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
