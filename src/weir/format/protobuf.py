"""Message classes from descriptors built in code, so that no protoc is needed to build weir.

Each set lives in a descriptor pool of its own: another library in the process may register lance's
real names in the default pool. Every singular field is `optional`, so that its presence is known;
the wire format is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

_SCALARS = {
    "bytes": 12,
    "string": 9,
    "uint32": 13,
    "uint64": 4,
    "int32": 5,
    "int64": 3,
    "bool": 8,
}
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its stored number, its name here, a scalar type or the name of a message."""

    number: int
    name: str
    type: str
    repeated: bool = False
    packed: bool = False


def message_classes(package: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """The message classes of one package, by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = "proto3"  # its parser refuses a string that is not UTF-8; proto2's does not
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for field in fields:
            entry = message.field.add(name=field.name, number=field.number)
            entry.label = _REPEATED if field.repeated else _OPTIONAL
            if field.type in _SCALARS:
                entry.type = _SCALARS[field.type]
                if not field.repeated:
                    entry.proto3_optional = True
                    entry.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")
            else:
                entry.type = _MESSAGE
                entry.type_name = f".{package}.{field.type}"
            if field.packed:
                entry.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


class LaterFormat(ValueError):
    """A later release wrote the message; the text says what this one does not know."""


def require_known(message: Any, what: str, *, retired: Collection[int] = ()) -> None:
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
