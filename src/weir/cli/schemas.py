"""A schema as text: `id:int64!`, `name:string`, `embedding:float32[768]`, `tags:list<string>`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import typer

_VECTOR = re.compile(r"(\w+)\[(\d+)\]")
_LIST = re.compile(r"list<(.+)>")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")


def parse(columns: Sequence[str], key: Sequence[str]) -> pa.Schema:
    """Parse a schema; a column marked `!` or in the key is not nullable."""
    fields = []
    for text in columns:
        name, separator, kind = text.partition(":")
        if not separator or not name:
            raise typer.BadParameter(
                f"{text!r}: write NAME:TYPE, e.g. id:int64", param_hint="--column"
            )
        required = kind.endswith("!") or name in key
        fields.append(
            pa.field(name.strip(), _type(kind.rstrip("!").strip()), nullable=not required)
        )
    return pa.schema(fields)


def require(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """The same schema, without nulls in the key."""
    return pa.schema([f.with_nullable(f.nullable and f.name not in key) for f in schema])


def _type(text: str) -> pa.DataType:
    if found := _LIST.fullmatch(text):
        return pa.list_(_type(found[1]))
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found[1]), int(found[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        pass
    if found := _VECTOR.fullmatch(text):
        return pa.list_(_type(found[1]), int(found[2]))
    raise typer.BadParameter(
        f"unknown type {text!r}; use a type such as int64, float64, string, bool, binary,"
        " timestamp[us], date32, decimal(10,2), list<string>, or float32[768] for a vector",
        param_hint="--column",
    )
