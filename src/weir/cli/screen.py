"""A terminal that shows text and obeys none of it: names, rows and messages may be a stranger's."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from weir.cli.output import harmless


class Screen(Console):
    """A console whose only control characters are its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of `renderable`, their text without control characters."""
        for segment in super().render(renderable, options):
            # Rich's own commands, such as moving the cursor, are no text.
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
