"""The columns of a pydantic model, as `put` of its objects fills them. Imports no pydantic.

A field that may be None is nullable, any other is not. `Annotated[float, pa.float32()]` names the
type outright.
"""

from __future__ import annotations

import collections.abc
import datetime as dt
import types
import typing
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from weir.errors import InvalidInput

_PLAIN: Final[dict[object, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.datetime: pa.timestamp("us", "UTC"),
    dt.timedelta: pa.duration("us"),
    UUID: pa.uuid(),
}
_NAMED: Final = {
    "AwareDatetime": pa.timestamp("us", "UTC"),
    "PastDatetime": pa.timestamp("us", "UTC"),
    "FutureDatetime": pa.timestamp("us", "UTC"),
    "NaiveDatetime": pa.timestamp("us"),
    "PastDate": pa.date32(),
    "FutureDate": pa.date32(),
}
"""Types of pydantic that are classes of its own."""
_LISTS: Final = (list, set, frozenset, collections.abc.Sequence)
_DICTS: Final = (dict, collections.abc.Mapping)


def is_model(given: object) -> bool:
    """True for a pydantic model class."""
    return isinstance(given, type) and isinstance(getattr(given, "model_fields", None), dict)


def model_schema(model: Any) -> pa.Schema:
    """The fields of the model, and its computed ones; `InvalidInput` names one without a type."""
    return pa.schema(_fields(model, ()))


def python_type(where: str, kind: Any) -> pa.DataType:
    """The column type of a Python type, as in a model; `InvalidInput` if there is none."""
    kind, metadata, _ = _unwrapped(where, kind, ())
    return _type(where, kind, metadata, ())


def _fields(model: Any, within: tuple[object, ...]) -> list[pa.Field]:
    where = model.__name__
    if model in within:
        raise InvalidInput(f"{where} contains itself, and a column cannot; give a schema instead")
    inside = (*within, model)
    found = [
        _field(f"{where}.{name}", name, info.annotation, tuple(info.metadata), inside)
        for name, info in model.model_fields.items()
        if not info.exclude
    ]
    found += [
        _field(f"{where}.{name}", name, info.return_type, (), inside)
        for name, info in model.model_computed_fields.items()
    ]
    return found


def _field(
    where: str, name: str, kind: Any, metadata: tuple[Any, ...], within: tuple[object, ...]
) -> pa.Field:
    kind, metadata, is_nullable = _unwrapped(where, kind, metadata)
    return pa.field(name, _type(where, kind, metadata, within), nullable=is_nullable)


def _unwrapped(
    where: str, kind: Any, metadata: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], bool]:
    """The type without None and annotations, the annotations, and whether None was among them."""
    is_nullable = False
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            kind, *more = typing.get_args(kind)
            metadata = (*metadata, *more)
        elif origin is typing.Union or origin is types.UnionType:
            members = [one for one in typing.get_args(kind) if one is not type(None)]
            is_nullable = is_nullable or len(members) < len(typing.get_args(kind))
            if len(members) != 1:
                raise InvalidInput(f"{where} may be of several types; a column has one")
            (kind,) = members
        else:
            return kind, metadata, is_nullable


def _type(
    where: str, kind: Any, metadata: tuple[Any, ...], within: tuple[object, ...]
) -> pa.DataType:
    for note in metadata:
        if isinstance(note, pa.DataType):
            return note
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _LISTS and len(arguments) == 1:
        return _list(where, arguments[0], metadata, within)
    if origin in _DICTS and len(arguments) == 2:
        item = _field(f"{where}[]", "value", arguments[1], (), within)
        return pa.map_(_type(f"{where}[]", arguments[0], (), within), item)
    if origin is typing.Literal:
        return _common(where, {type(value) for value in arguments})
    if is_model(kind):
        return pa.struct(_fields(kind, within))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _common(where, {type(member.value) for member in kind})
    if kind is Decimal:
        return _decimal(where, metadata)
    found = _PLAIN.get(kind) or _NAMED.get(getattr(kind, "__name__", ""))
    if found is None:
        told = getattr(kind, "__name__", str(kind))
        raise InvalidInput(
            f"{where} is {told}, for which there is no column type; name one with"
            " Annotated[..., pa.string()], say, or give a schema instead"
        )
    return found


def _list(
    where: str, kind: Any, metadata: tuple[Any, ...], within: tuple[object, ...]
) -> pa.DataType:
    item = _field(f"{where}[]", "item", kind, (), within)
    least, most = _bound(metadata, "min_length"), _bound(metadata, "max_length")
    if most is not None and least == most:
        # A vector. Its numbers are rounded, as in any list of floats: embeddings are stored so.
        numbers = pa.float32() if item.type == pa.float64() else item.type
        return pa.list_(pa.field("item", numbers), most)
    return pa.list_(item)


def _decimal(where: str, metadata: tuple[Any, ...]) -> pa.DataType:
    digits, places = _bound(metadata, "max_digits"), _bound(metadata, "decimal_places")
    if digits is None or places is None or not 0 < digits <= 76:
        raise InvalidInput(
            f"{where} is Decimal: say how large it can be, with max_digits (at most 76) and"
            " decimal_places"
        )
    return (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, places)


def _bound(metadata: tuple[Any, ...], name: str) -> int | None:
    """A constraint, as annotated-types and pydantic carry them."""
    for note in metadata:
        value = getattr(note, name, None)
        if isinstance(value, int):
            return value
    return None


def _common(where: str, kinds: set[type]) -> pa.DataType:
    found = [_PLAIN.get(kind) for kind in kinds]
    if len(found) != 1 or found[0] is None:
        raise InvalidInput(f"{where} has values of several types; a column has one")
    return found[0]
