"""The name of every object, built and parsed in one place.

Paths are relative to the table's root, with `/` between parts and none at the ends. Names chosen by
users (shard ids, consumers, applications) are checked or hashed here, so that no name can leave its
folder. A parse function returns None for a foreign name and never raises: a listing may contain
objects that weir did not write.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal
from uuid import UUID

from weir.errors import InvalidInput
from weir.types import Generation, Position, Version

# Stored. Never change a value; add one.
SHARDS: Final = "_mem_wal"
WEIR: Final = "_weir"
CHECKPOINTS: Final = "_weir/checkpoints"
CONSUMERS: Final = "_weir/consumers"
APPS: Final = "_weir/apps"
CLOCK: Final = "_weir/clock"
PROBE: Final = "_weir/probe"
STAGING: Final = "_weir/staging"
LOG_OWNER: Final = "weir_owner.json"
"""In a folder of a WAL store: the table whose logs it holds."""
VERSIONS: Final = "_versions"
"""Lance's folder of base versions."""
TABLE_FOLDERS: Final = (
    SHARDS,
    VERSIONS,
    "data",
    "_deletions",
    "_indices",
    "_transactions",
    "_refs",
    WEIR,
)
"""All folders that a table writes to, Lance's included; anything else at its URI is not part of the
table."""
SSTABLE_CLAIM: Final = "weir_claim"
"""In the folder of an SSTable: taken before anything else is written there."""
PK_PAGE_DATA: Final = "_pk_index/page_data.lance"
PK_PAGE_LOOKUP: Final = "_pk_index/page_lookup.lance"

U64_MAX: Final = 2**64 - 1

_BITS = re.compile(r"[01]{64}")
_DIGITS20 = re.compile(r"[0-9]{20}")
_LOG_FOLDER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9a-f]{12}")
_CONSUMER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_SSTABLE = re.compile(r"([0-9a-f]{8})_gen_([1-9][0-9]{0,19})")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
_TAKEN: Final = ("wal", "manifest")
_MANIFEST_SUFFIX = ".binpb"
_WAL_SUFFIX = ".arrow"
_CHAIN_SUFFIX = ".json"


def _check_u64(n: int, what: str) -> None:
    if not 0 <= n <= U64_MAX:
        raise InvalidInput(f"{what} {n} does not fit in 64 bits")


def bit_reversed(n: int) -> str:
    """The 64 binary digits of `n`, least significant first: neighbours land far apart."""
    if not 0 <= n <= U64_MAX:
        _check_u64(n, "number")
    return f"{n:064b}"[::-1]


def parse_bit_reversed(name: str) -> int | None:
    """The number behind a bit-reversed name, or None."""
    return int(name[::-1], 2) if _BITS.fullmatch(name) else None


def parse_shard_id(text: str) -> UUID:
    """The shard id, or `InvalidInput` for anything but a lower-case hyphenated UUID."""
    try:
        shard = UUID(text)
    except (ValueError, AttributeError, TypeError):
        shard = None
    if shard is None or str(shard) != text:
        raise InvalidInput(
            f"shard id {text!r} is not a UUID such as 00112233-4455-6677-8899-aabbccddeeff"
            " (lower case, with hyphens)"
        )
    return shard


def shard_dir(shard: UUID) -> str:
    """The folder of one shard."""
    return f"{SHARDS}/{shard}"


def manifest_dir(shard: UUID) -> str:
    """The folder of a shard's manifest versions."""
    return f"{SHARDS}/{shard}/manifest"


def manifest_path(shard: UUID, version: Version) -> str:
    """Where one manifest version lives."""
    return f"{SHARDS}/{shard}/manifest/{bit_reversed(version)}{_MANIFEST_SUFFIX}"


def manifest_hint_path(shard: UUID) -> str:
    """The overwritten, best-effort hint at the latest manifest version."""
    return f"{SHARDS}/{shard}/manifest/version_hint.json"


def parse_manifest_name(file_name: str) -> Version | None:
    """The version behind a manifest's file name, or None."""
    n = _parse_suffixed(file_name, _MANIFEST_SUFFIX)
    return None if n is None else Version(n)


def wal_dir(shard: UUID) -> str:
    """The folder of a shard's WAL entries."""
    return f"{SHARDS}/{shard}/wal"


def wal_path(shard: UUID, position: Position) -> str:
    """Where the WAL entry of one position lives."""
    return f"{SHARDS}/{shard}/wal/{wal_name(position)}"


def wal_name(position: Position) -> str:
    """The file of one position within its `wal_dir`."""
    return bit_reversed(position) + _WAL_SUFFIX


def parse_wal_name(file_name: str) -> Position | None:
    """The position behind a WAL entry's file name, or None."""
    n = _parse_suffixed(file_name, _WAL_SUFFIX)
    return None if n is None else Position(n)


def _parse_suffixed(file_name: str, suffix: str) -> int | None:
    # Versions and positions start at 1; 0 means 'none yet' and is never a file.
    if not file_name.endswith(suffix):
        return None
    return parse_bit_reversed(file_name[: -len(suffix)]) or None


def sstable_name(generation: Generation, tag8hex: str) -> str:
    """The folder name of an SSTable; the tag keeps two attempts at one generation apart."""
    name = f"{tag8hex}_gen_{generation}"
    if parse_sstable_name(name) is None:
        raise InvalidInput(
            f"SSTable name {name!r} must be 8 lower-case hex digits, '_gen_' and a generation"
            " above 0"
        )
    return name


def parse_sstable_name(name: str) -> tuple[str, Generation] | None:
    """(tag, generation) of an SSTable's folder name, or None."""
    match = _SSTABLE.fullmatch(name)
    if match is None or int(match[2]) > U64_MAX:
        return None
    return match[1], Generation(int(match[2]))


def sstable_folder(name: object) -> str:
    """The SSTable name that a manifest or a record gives; `ValueError` if it is no folder (G-13).

    Other writers may choose other names, so `parse_sstable_name` would be too strict. Refused are
    names that lead elsewhere, also after URL decoding, and folders that have another use.
    """
    # guard: G-13 test_inside_the_table
    if not isinstance(name, str) or not _FOLDER.fullmatch(name) or name in _TAKEN:
        raise ValueError(f"SSTable path {name!r} is not a folder name")
    return name


def sstable_dir(shard: UUID, name: str) -> str:
    """The folder of one SSTable, by the name its shard manifest gives."""
    try:
        return f"{SHARDS}/{shard}/{sstable_folder(name)}"
    except ValueError as error:
        raise InvalidInput(f"shard {shard}: {error}") from None


def clock_path(id_: UUID) -> str:
    """An object that is written to read the store's clock from its timestamp, then deleted."""
    return f"{CLOCK}/{id_}"


def probe_dir(id_: UUID) -> str:
    """The folder of one probe of the store."""
    return f"{PROBE}/{id_}"


def staged_path(job: str, name: str) -> str:
    """A file on its way from a task to the driver of a job."""
    return f"{STAGING}/{job}/{name}.arrow"


def base_version_path(name: str) -> str:
    """Where Lance keeps a version of the base, by the name that `lance_file` gives it."""
    return f"{VERSIONS}/{name}"


def table_chain() -> str:
    """The records of the table itself."""
    return f"{WEIR}/table"


def checkpoint_chain(checkpoint: UUID) -> str:
    """The records of one checkpoint."""
    return f"{CHECKPOINTS}/{checkpoint}"


def consumer_chain(name: str) -> str:
    """The records of one named consumer of the change feed."""
    if not _CONSUMER.fullmatch(name):
        raise InvalidInput(
            f"consumer name {name!r}: use 1 to 128 letters, digits, '_', '-' or '.',"
            " beginning with a letter, digit or '_'"
        )
    return f"{CONSUMERS}/{name}"


def compaction_chain() -> str:
    """The records of compaction."""
    return f"{WEIR}/compaction"


def base_floor_dir(table: UUID) -> str:
    """Markers: base versions of that table at or below the highest may have been cleaned up (G-6).

    Versions begin anew in the next table at the place, and what is raised late for an earlier one
    says nothing of them (C-16).
    """
    return f"{WEIR}/base_floor/{table}"


def clone_chain() -> str:
    """The records of a clone: where its data came from."""
    return f"{WEIR}/clone"


def reshard_chain() -> str:
    """The records of resharding."""
    return f"{WEIR}/reshard"


def statement_chain() -> str:
    """The records of statements over several shards (P-8)."""
    return f"{WEIR}/statements"


def places_chain(shard: UUID) -> str:
    """The records of where a shard's log is and was (S-3)."""
    return f"{WEIR}/shards/{shard}/places"


def keep_chain() -> str:
    """The records of what became of the table's upkeep."""
    return f"{WEIR}/keep"


def log_folder(table_id: UUID, incarnation: UUID) -> str:
    """The folder in a WAL store for the logs of one table, until they move again (S-8)."""
    return f"{table_id}-{incarnation.hex[:12]}"


def is_log_folder(name: str) -> bool:
    """True for a name that `log_folder` makes."""
    return _LOG_FOLDER.fullmatch(name) is not None


def chain_path(folder: str, seq: int) -> str:
    """The `seq`-th record of a chain; names sort by number."""
    _check_u64(seq, "record number")
    return f"{folder}/{seq:020d}{_CHAIN_SUFFIX}"


def parse_chain_name(file_name: str) -> int | None:
    """The record number behind a chain's file name, or None."""
    if not file_name.endswith(_CHAIN_SUFFIX):
        return None
    return _parse_digits20(file_name[: -len(_CHAIN_SUFFIX)])


def mark_path(folder: str, n: int) -> str:
    """An empty object whose name holds `n`, inverted so that the highest is listed first."""
    _check_u64(n, "mark")
    return f"{folder}/{U64_MAX - n:020d}"


def parse_mark_name(name: str) -> int | None:
    """The number in a mark's file name, or None."""
    n = _parse_digits20(name)
    return None if n is None else U64_MAX - n


def _parse_digits20(text: str) -> int | None:
    if not _DIGITS20.fullmatch(text):
        return None
    n = int(text)
    return n if n <= U64_MAX else None


def floors_dir(shard: UUID) -> str:
    """The folder of all floor marks of a shard; one listing reads them all."""
    return f"{WEIR}/shards/{shard}/floor"


def floor_dir(shard: UUID, kind: Literal["wal", "manifest", "used", "place", "statement"]) -> str:
    """Markers of one kind: up to them objects may be deleted (G-6), or positions are used (F-2)."""
    return f"{floors_dir(shard)}/{kind}"


JOB_APP: Final = "\x1fjob\x1f"
"""Prefix of an application name that stands for a single job, which never writes again."""
JOB_TOKENS: Final = f"{WEIR}/jobs"
"""Tokens of these single jobs, for all shards; collected by age."""


def tokens_dir(shard: UUID) -> str:
    """The exactly-once tokens of all applications."""
    return f"{WEIR}/shards/{shard}/tokens"


def job_tokens_dir(shard: UUID) -> str:
    """The tokens of single jobs."""
    return f"{JOB_TOKENS}/{shard}"


def token_dir(shard: UUID, app: str) -> str:
    """Markers of one application's exactly-once tokens (P-2); the user's name for it is hashed."""
    folder = job_tokens_dir(shard) if app.startswith(JOB_APP) else tokens_dir(shard)
    return f"{folder}/{token_folder(app)}"


def app_path(app: str) -> str:
    """The record that says which query numbers its batches under an application's name (P-6)."""
    return f"{APPS}/{token_folder(app)}.json"


def token_folder(app: str) -> str:
    """The name of an application's folder."""
    return hashlib.sha256(app.encode("utf-8", "surrogatepass")).hexdigest()[:32]
