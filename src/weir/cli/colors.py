"""The colours of everything that the command prints to a terminal."""

from __future__ import annotations

from typing import Final

from rich.theme import Theme

# Fixed colours of the 256, not the terminal's own sixteen: those are chosen for one background,
# and yellow on white cannot be read. Each of these has a contrast of 4 against both black and
# white.
GOOD: Final = "color(28)"
WARN: Final = "color(130)"
BAD: Final = "color(161)"
MARK: Final = "color(30)"
GREY: Final = "color(243)"

THEME: Final = Theme(
    {
        "good": GOOD,
        "warn": WARN,
        "bad": BAD,
        "mark": MARK,
        "bar.back": GREY,
        "bar.complete": MARK,
        "bar.finished": GOOD,
        "bar.pulse": MARK,
        "progress.spinner": MARK,
        "progress.percentage": MARK,
        "progress.elapsed": GREY,
    }
)
