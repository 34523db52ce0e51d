"""Pictures of the command's screens for the docs: `python tools/screens.py`.

The command's own code draws them from made-up figures, as SVG for light and dark mode.
They are committed, as the drawings are; `tests/docs` fails when they are stale.
"""

import io
import re
import sys
from pathlib import Path
from uuid import UUID

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

from weir.cli import output, stats
from weir.read.stats import ShardStats, TableStats

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "img"
COLUMNS = 80
ASPECT = 0.602  # of DejaVu Sans Mono and Menlo; others are stretched by textLength
SIXTEEN = [(128, 128, 128)] * 8  # the command uses none of the terminal's own colours
LIGHT = TerminalTheme((250, 250, 250), (34, 34, 34), SIXTEEN)
DARK = TerminalTheme((30, 32, 36), (221, 221, 221), SIXTEEN)
PAPER = {LIGHT: "#fafafa", DARK: "#1e2024"}
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 30 {width} {height}" role="img"
 aria-label="LABEL">
<style>
.{unique_id}-matrix {{ font-family: monospace;
 font-size: {char_height}px; line-height: {line_height}px }}
.{unique_id}-paper {{ fill: PAPER; stroke: #888; stroke-opacity: 0.4 }}
{styles}
</style>
<rect class="{unique_id}-paper" x="1" y="31" width="99.8%" height="97%" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})"><g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""
STYLE = re.compile(r"<style>\n(.*?)</style>", re.DOTALL)


def svg(name: str, label: str, command: str, *shown: RenderableType) -> str:
    """What a terminal shows after `command`, in light and dark mode."""
    found = {}
    for theme in (LIGHT, DARK):
        console = screen()
        console.print(f"[bold]$ {command}[/]")
        for part in shown:
            console.print(part)
        made = console.export_svg(
            theme=theme, code_format=FORMAT, unique_id=name, font_aspect_ratio=ASPECT
        )
        found[theme] = made.replace("PAPER", PAPER[theme]).replace("LABEL", label)
    light, dark = STYLE.search(found[LIGHT]), STYLE.search(found[DARK])
    assert light is not None
    assert dark is not None
    both = f"{light[1]}@media (prefers-color-scheme: dark) {{\n{dark[1]}}}\n"
    whole = STYLE.sub(lambda _: f"<style>\n{both}</style>", found[LIGHT])
    assert STYLE.sub("", whole) == STYLE.sub("", found[DARK])
    # Lines are not clipped: the template leaves out the definitions of the clip paths.
    return re.sub(r' clip-path="url\([^)]*\)"', "", whole).replace("&#160;", "\u00a0")


def screen() -> Console:
    """A terminal of eighty columns that records its output."""
    return Console(
        width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, theme=output.THEME,
        color_system="256", highlight=False,
    )  # fmt: skip


def shard(value: int, tip: int, lag: int, *, epoch: int = 4, sstables: int = 2) -> ShardStats:
    """A shard of the made-up table."""
    return ShardStats(
        shard=UUID(int=value),
        value=value,
        is_routed=True,
        is_sealed=False,
        epoch=epoch,
        manifest_version=9,
        wal_tip=tip,
        wal_flushed=tip - lag,
        lag=lag,
        unflushed_bytes=lag * 36_480,
        oldest_unflushed_seconds=lag * 0.031 if lag else None,
        wal_floor=0,
        next_generation=sstables + 20,
        generations=sstables,
        sstable_rows=sstables * 100_000,
        sstable_bytes=sstables * 9_000_000,
        pins=1,
    )


def table(*shards: ShardStats) -> TableStats:
    """The made-up table."""
    return TableStats("s3://lake/orders", 212, 18_400_512, 1, shards)


def stats_screen() -> str:
    """`weir stats`; SSTables pile up in one shard."""
    found = table(
        shard(0, 48_112, 212),
        shard(1, 47_903, 198),
        shard(2, 48_377, 204, sstables=9),
        shard(3, 47_655, 0, epoch=5, sstables=3),
    )
    return svg(
        "stats",
        "weir stats",
        "weir stats s3://lake/orders",
        stats.overview([stats.Sample(0.0, found)]),
    )


def top_screen() -> str:
    """`weir top`; one shard is taken over while it runs."""
    rates = (31, 33, 30, 34, 36, 35, 33, 12, 18, 33, 35, 36)
    samples = []
    for second in range(len(rates) + 1):
        tips = sum(rates[:second])
        samples.append(
            stats.Sample(
                float(second),
                table(
                    shard(0, 48_000 + tips, 12 + second),
                    shard(1, 47_900 + tips, 30 + second),
                    shard(2, 48_300 + tips, 22 + second, epoch=4 + (second > 8)),
                    shard(3, 47_600 + 3 * tips, 8 + second, sstables=3),
                ),
            )
        )
    return svg("top", "weir top", "weir top s3://lake/orders", stats.overview(samples))


SCREENS = {
    "screen-stats.svg": stats_screen,
    "screen-top.svg": top_screen,
}


def main() -> int:
    """Write all screens."""
    for name, draw in SCREENS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
