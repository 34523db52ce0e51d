"""Message classes from descriptors built in code, so that no protoc is needed to build weir.

Each set lives in a descriptor pool of its own: another library in the process may register lance's
real names in the default pool. Every singular field is `optional`, so that its presence is known;
the wire format is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

T = TypeVar("T")

_SCALARS = {
    "bytes": 12,
    "str": 9,
    "uint32": 13,
    "uint64": 4,
    "int32": 5,
    "int64": 3,
    "bool": 8,
}
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3


class Message:
    """What every message has. Subclasses declare messages for the reader and the type checker; the
    objects are of protobuf's own classes."""

    def HasField(self, name: str) -> bool:  # noqa: N802  protobuf's spelling
        """True when that singular field is present."""
        raise NotImplementedError

    def ClearField(self, name: str) -> None:  # noqa: N802
        """Leave that field out."""
        raise NotImplementedError

    def SerializeToString(self, *, deterministic: bool = False) -> bytes:  # noqa: N802
        """The message's bytes."""
        raise NotImplementedError


class Repeated(Protocol[T]):
    """The values of a repeated field."""

    def __iter__(self) -> Iterator[T]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> T: ...

    def __setitem__(self, part: slice, values: Iterable[T]) -> None: ...

    def __delitem__(self, part: slice) -> None: ...

    def add(self, **values: object) -> T:
        """A new message at the end."""

    def extend(self, values: Iterable[T]) -> None:
        """Add values at the end."""


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: str


def stored(number: int, kind: str = "") -> Any:
    """A field of a message: its stored number, and which of protobuf's integers it is."""
    return _Field(number, kind)


def message_classes(package: str, kinds: Sequence[type[Message]]) -> dict[str, Any]:
    """The message classes of one package, by name, as their annotations declare them."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = "proto3"  # its parser refuses a string that is not UTF-8; proto2's does not
    for kind in kinds:
        message = file.message_type.add(name=kind.__name__)
        for name, annotation in kind.__annotations__.items():
            field: _Field = kind.__dict__[name]
            inner = annotation.removeprefix("Repeated[").removesuffix("]")
            is_repeated = inner != annotation
            entry = message.field.add(name=name, number=field.number)
            entry.label = _REPEATED if is_repeated else _OPTIONAL
            scalar = _SCALARS.get(field.kind or inner)
            if scalar is None:
                entry.type = _MESSAGE
                entry.type_name = f".{package}.{inner}"
                continue
            entry.type = scalar
            if is_repeated:
                entry.options.packed = bool(field.kind)  # as proto3 does, and Lance
            else:
                entry.proto3_optional = True
                entry.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [kind.__name__ for kind in kinds]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in names
    }


class LaterFormat(ValueError):
    """A later release wrote the message; the text says what this one does not know."""


def require_known(message: Message, what: str, *, retired: Collection[int] = ()) -> None:
    """X-9: `LaterFormat` naming the field when the message has one that this release does not know.

    A field of a later format may change the meaning of the rest, so ignoring it would misread the
    message. `retired` numbers belong to older formats and no longer mean anything.
    """
    unknown = sorted({f.field_number for f in UnknownFieldSet(message)}.difference(retired))
    if unknown:  # guard: X-9 test_pending_bytes
        raise LaterFormat(
            f"{what} has the unknown field {', '.join(map(str, unknown))}: a later version of the"
            " format wrote it; upgrade weir"
        )
