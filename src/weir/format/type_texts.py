"""Types as text: `int64!`, `float32[768]`, `timestamp[us, UTC]`; columns as `id:int64!`."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Sequence

import pyarrow as pa

from weir.errors import InvalidInput

_TYPES = {"uuid": pa.uuid}
_OFFSET = re.compile(r"[+-]\d\d:\d\d")


def parse_field(name: str, text: str) -> pa.Field:
    """A column of the type that the text names; `!` at the end means not null."""
    kind = text.strip()
    return pa.field(name, parse_type(kind.rstrip("!")), nullable=not kind.endswith("!"))


def parse_column(text: str) -> pa.Field:
    """A column given as `NAME:TYPE`; `InvalidInput` says what to write."""
    name, separator, kind = text.partition(":")
    if not separator or not name.strip():
        raise InvalidInput(f"{text!r}: write NAME:TYPE, e.g. id:int64")
    return parse_field(name.strip(), kind)


def _item(text: str) -> pa.Field:
    """What a list holds: a type, or a field as pyarrow prints it."""
    return (
        parse_column(text) if ":" in text.partition("<")[0] else pa.field("item", parse_type(text))
    )


def _list(of: Sequence[str]) -> pa.DataType:
    return pa.list_(_item(_only(of, "list")))


def _large_list(of: Sequence[str]) -> pa.DataType:
    return pa.large_list(_item(_only(of, "large_list")))


def _struct(of: Sequence[str]) -> pa.DataType:
    return pa.struct([parse_column(part) for part in of])


def _map(of: Sequence[str]) -> pa.DataType:
    if len(of) != 2:
        raise InvalidInput("a map has two types: map<string, int64>")
    return pa.map_(parse_type(of[0]), parse_type(of[1]))


def _only(parts: Sequence[str], name: str) -> str:
    if len(parts) != 1:
        raise InvalidInput(f"a {name} has one type: {name}<string>")
    return parts[0]


_NESTED: dict[str, Callable[[Sequence[str]], pa.DataType]] = {
    "list": _list,
    "large_list": _large_list,
    "struct": _struct,
    "map": _map,
}


def parse_type(text: str) -> pa.DataType:
    """The type that the text names, as pyarrow prints it or shorter; `InvalidInput` names some."""
    text = text.strip()
    if found := re.fullmatch(r"(\w+)\s*<(.*)>", text, re.DOTALL):
        if found[1] in _NESTED:
            return _NESTED[found[1]](_split(found[2]))
    elif found := re.fullmatch(r"decimal(128|256)?\((\d+), ?(\d+)\)", text):
        return _decimal(found[1] == "256", int(found[2]), int(found[3]))
    elif found := re.fullmatch(r"timestamp\[(s|ms|us|ns), ?(?:tz=)?([^\]]+)\]", text):
        return pa.timestamp(found[1], _zone(found[2].strip()))
    elif found := re.fullmatch(r"(?:fixed_size_)?binary\[(\d+)\]", text):
        return pa.binary(int(found[1]))
    elif text in _TYPES:
        return _TYPES[text]()
    try:
        return pa.type_for_alias(text)
    except ValueError:
        pass
    # A list in brackets is a vector too: Lance stores no vectors of lists.
    if found := re.fullmatch(r"(?:fixed_size_)?list\s*<(.*)>\[(\d+)\]", text, re.DOTALL):
        return pa.list_(_item(found[1]), int(found[2]))
    if found := re.fullmatch(r"(.*\S)\[(\d+)\]", text, re.DOTALL):
        return pa.list_(parse_type(found[1]), int(found[2]))
    raise InvalidInput(
        f"unknown type {text!r}; use a type such as int64, float64, string, bool, binary, uuid,"
        " timestamp[us], timestamp[us, UTC], date32, decimal(10,2), list<string>,"
        " struct<a: int64, b: string>, or float32[768] for a vector"
    )


def _decimal(is_wide: bool, precision: int, scale: int) -> pa.DataType:  # noqa: FBT001
    most = 76 if is_wide else 38
    if not 0 < precision <= most or scale > precision:
        raise InvalidInput(
            f"decimal({precision},{scale}): write 1 to {most} digits, of which at most as many"
            " after the point"
        )
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, scale)


def _split(text: str) -> list[str]:
    """The parts between commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "<[(") - (char in ">])")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]]]


def _zone(name: str) -> str:
    if _OFFSET.fullmatch(name) is None and name not in zoneinfo.available_timezones():
        raise InvalidInput(f"unknown time zone {name!r}; write UTC, Europe/Zurich or +02:00")
    return name
