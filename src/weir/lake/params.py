"""Parameters of SQL text: `"user = $u"` with `params={"u": user}`.

Lance takes no parameters, so values become literals of the text. It is done here and nowhere else:
a value is written as a complete literal of its own type (`weir.lake.literals`), and only where a
name stands outside quotes. What is not certain to be read so is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.lake.literals import literal
from weir.types import Filter, Params

_TOKEN: Final = re.compile(
    r"""
      (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)
    | (?P<open>['"`])
    | (?P<comment>--|/\*)
    | \$(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<dollar>\$)
    """,
    re.VERBOSE,
)
_WORD: Final = re.compile(r"[\w$]")
_ESCAPING: Final = re.compile(r"(?:^|\W)[eE]$")
"""Before a quote: a text in which some dialects of SQL take a backslash for an escape."""


def bind(text: str, params: Params | None, *, used: set[str] | None = None) -> str:
    """The text with each `$name` replaced by the literal of its parameter.

    Raises `InvalidInput` for a name without a value, for a value whose type has no literal, and for
    a value that is not used; of several texts that share their parameters, `used` collects those
    used, and `require_used` checks them. Without `params` a text that names one is refused.
    """
    if params is None:
        require_bound(text)
        return text
    if not isinstance(params, Mapping):
        raise InvalidInput(f"params has values by name: 'id = $i' takes {{'i': 7}}, not {params!r}")
    names = set() if used is None else used
    parts: list[str] = []
    end = 0
    for token in _TOKEN.finditer(text):
        if token["quoted"] is not None and not _ESCAPING.search(text[: token.start()]):
            continue
        name = token["name"]
        if name is None or _WORD.match(text[token.start() - 1 : token.start()]):
            raise InvalidInput(_refused(text, token))
        if name not in params:
            known = sorted(str(key) for key in params)
            raise InvalidInput(f"{text!r} names ${name}, and params has only {known or 'nothing'}")
        names.add(name)
        # Spaces, so that it cannot become part of what stands beside it.
        parts += [text[end : token.start()], " ", _literal(name, params), " "]
        end = token.end()
    if used is None:
        require_used(params, names)
    return "".join([*parts, text[end:]])


def bind_filter(filter: Filter | None, params: Params | None) -> Filter | None:
    """`bind` for a filter in SQL; `InvalidInput` for parameters without one."""
    if isinstance(filter, str):
        return bind(filter, params)
    if params is not None:
        what = "no filter" if filter is None else "a pyarrow expression"
        raise InvalidInput(f"params belong to a filter in SQL text, and there is {what}")
    return filter


def bind_condition(filter: Filter, params: Params | None) -> Filter:
    """`bind_filter` where there must be a filter."""
    bound = bind_filter(filter, params)
    return filter if bound is None else bound


def bind_when(when: Filter | None, params: Params | None) -> Filter:
    """The condition of a put that has one, or has parameters."""
    if when is None:
        raise InvalidInput("params belong to the condition of a put, and when= is not given")
    return bind_condition(when, params)


def bind_update(
    filter: Filter, assignments: Mapping[str, str], params: Params | None
) -> tuple[Filter, dict[str, str]]:
    """A filter and the SQL of new values, which share their parameters."""
    if not isinstance(assignments, Mapping):
        raise InvalidInput(f"new values must be a dict of columns and SQL, got {assignments!r}")
    used: set[str] = set()
    bound = bind(filter, params, used=used) if isinstance(filter, str) else filter
    changes = {}
    for name, text in assignments.items():
        require_text(text, f"column {name!r}: the expression")
        changes[name] = bind(text, params, used=used)
    if params is not None:
        require_used(params, used)
    return bound, changes


def require_used(params: Params, used: set[str]) -> None:
    """Raise `InvalidInput` for a parameter that no text names."""
    unused = sorted({str(name) for name in params} - used)
    if unused:
        raise InvalidInput(f"params has {unused}, which the SQL does not name as $name")


def require_bound(text: str) -> None:
    """Raise `InvalidInput` for text that names a parameter: Lance's planner would panic."""
    if "$" not in text:
        return
    for token in _TOKEN.finditer(text):
        if token["name"] is not None:
            raise InvalidInput(
                f"{text!r} names the parameter ${token['name']}; pass its value:"
                f" params={{{token['name']!r}: ...}}"
            )


def require_text(text: object, what: str) -> None:
    """Raise `InvalidInput` for anything but SQL text."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{what} must be SQL text, got {text!r}")


def require_filter(filter: object, what: str) -> None:
    """Raise `InvalidInput` for anything but SQL text or a pyarrow expression."""
    if isinstance(filter, pc.Expression):
        return
    if not isinstance(filter, str) or not filter.strip():
        raise InvalidInput(f"{what} must be SQL text or a pyarrow expression, got {filter!r}")


def _literal(name: str, params: Params) -> str:
    try:
        return literal(params[name])
    except InvalidInput as error:
        raise InvalidInput(f"parameter ${name}: {error}") from error


def _refused(text: str, token: re.Match[str]) -> str:
    if token["comment"] is not None:
        why = "has a comment; with params there can be none"
    elif token["quoted"] is not None:
        why = "has a text with escapes (E'...'); with params write it plainly"
    elif token["open"] is not None:
        why = f"has a quote {token['open']} that is not closed"
    else:
        why = "has a $ that begins no parameter; write $name, with no letter before it"
    return f"{text!r} {why} (character {token.start() + 1})"
