"""Checks on object paths: none leaves the root or looks like a file that is being written."""

from __future__ import annotations

import re

from weir.errors import InvalidInput

TEMPORARY = re.compile(r"#\d+$")
"""Names of files being written; obstore and pylance leave them out of listings too."""

_BAD = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\\]|#\d+(/|$)")


def check(path: str) -> str:
    """The path itself, or `InvalidInput` for an empty part, `..` or a temporary name."""
    if (not path.isprintable() or _looks_odd(path)) and _BAD.search(path):
        raise InvalidInput(
            f"{path!r} is not a valid object path: parts must not be empty, '.' or '..', hold"
            " control characters or backslashes, or end in '#' and digits"
        )
    return path


def _looks_odd(path: str) -> bool:
    """False for printable text that is certainly fine, in a tenth of the full pattern's time."""
    return (
        "//" in path
        or "/." in path
        or "#" in path
        or "\\" in path
        or path[:1] in ("", ".", "/")
        or path[-1] == "/"
    )


def check_folder(prefix: str) -> str:
    """Like `check`, but the root (an empty prefix) is fine, and a slash at the end is dropped."""
    prefix = prefix.rstrip("/")
    return check(prefix) if prefix else ""
