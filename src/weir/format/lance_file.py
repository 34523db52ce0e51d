"""The envelope of a Lance manifest file, and its file name.

[sections ...] u32-LE length, Manifest protobuf, footer: u64-LE offset of the length word, u16
major, u16 minor, "LANC". A section is a message anywhere in the file, also after its length.
"""

from __future__ import annotations

import struct
from typing import Final

from weir.errors import CorruptEntry
from weir.types import Version

LANCE_MANIFEST_BYTES_MAX: Final = 1 << 30

_MAGIC = b"LANC"
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_U64_MAX = 2**64 - 1
_SUFFIX = ".manifest"


def version_name(version: Version) -> str:
    """The file name of a base table version: inverted, so that the newest is listed first."""
    return f"{_U64_MAX - version:020d}{_SUFFIX}"


def parse_version_name(file_name: str) -> Version | None:
    """The version behind a manifest's file name, old (plain) or new (inverted) style, or None.

    Names of detached versions begin with a letter and are not in the table's history.
    """
    stem = file_name.removesuffix(_SUFFIX)
    if stem == file_name or not (stem.isascii() and stem.isdigit()) or len(stem) > 20:
        return None
    number = int(stem)
    if len(stem) == 20:
        number = _U64_MAX - number
    return Version(number) if number >= 1 else None


def unusable(path: str, reason: object) -> CorruptEntry:
    """The error for a Lance manifest that cannot be read; it says what to do."""
    return CorruptEntry(
        f"{path} is not a usable Lance manifest: {reason}. Restore the object from a copy of the"
        " table. If it is a version of the base, you can also roll back to an older version, with"
        " Lance or with a checkpoint"
    )


def manifest_offset(raw: bytes, *, path: str) -> int:
    """Where the length word of the Manifest message is."""
    if len(raw) > LANCE_MANIFEST_BYTES_MAX:
        raise unusable(
            path, f"it has {len(raw)} bytes, more than the limit of {LANCE_MANIFEST_BYTES_MAX}"
        )
    if len(raw) < _FOOTER.size or raw[-4:] != _MAGIC:
        raise unusable(path, "it has no Lance footer; it is truncated or not a manifest")
    return int(_FOOTER.unpack_from(raw, len(raw) - _FOOTER.size)[0])


def section(raw: bytes, offset: int, *, path: str) -> bytes:
    """The message whose length word is at `offset`."""
    end_max = len(raw) - _FOOTER.size
    if not 0 <= offset <= end_max - _LENGTH.size:
        raise unusable(path, f"a section begins at byte {offset}, outside the file")
    start = offset + _LENGTH.size
    length = int(_LENGTH.unpack_from(raw, offset)[0])
    if start + length > end_max:
        raise unusable(path, f"the section at byte {offset} extends past the end of the file")
    return raw[start : start + length]


def assemble(message: bytes, *, before: bytes = b"", footer_of: bytes) -> bytes:
    """A manifest file of `message` behind `before`, with the format version of another file."""
    _, major, minor, magic = _FOOTER.unpack_from(footer_of, len(footer_of) - _FOOTER.size)
    footer = _FOOTER.pack(len(before), major, minor, magic)
    return b"".join((before, _LENGTH.pack(len(message)), message, footer))
