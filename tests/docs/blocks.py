"""Code in Markdown: fenced blocks with their page, line, language and the mark above them.

A mark is a comment on the line before the fence: `<!-- test: skip (why) -->`. A comment that begins
with `<!-- test: setup` holds code that readers do not see (`setup spark`: it needs a session).
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^<!-- test: (?P<setup>setup[ \w]*)\n(?P<hidden>.*?)^-->$"
    r"|(?:^<!-- test: (?P<mark>[^>]*?) -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    code: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("hidden" if found["setup"] else "code")) + 1,
            language="python" if found["setup"] else found["language"],
            mark=found["setup"] or found["mark"] or "",
            code=found["hidden"] if found["setup"] else found["code"],
        )
        for found in FENCE.finditer(text)
    ]
