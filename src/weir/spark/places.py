"""Find the table that a map of options names, and open it once in each process."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import weir
from weir.errors import InvalidInput, NotAWeirTable
from weir.records.table import replaced
from weir.routing.opening import open as open_core
from weir.spark.writers import ShardWriters
from weir.store.open import normalize

STORAGE: Final = "storage."
"""Prefix of the options that are storage options."""

FROM: Final = "storageOptionsFrom"
"""Option: the environment variable that holds further storage options, as JSON."""
_SECRET: Final = re.compile(r"secret|key$|token|sas|password|credential", re.IGNORECASE)

logger = logging.getLogger("weir.spark")

ENDING: Final = ".lance"
"""Suffix of the folder of a table that is known by its name."""

_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})


@dataclass(frozen=True)
class Place:
    """A table and how to reach it. Travels inside closures; its printed form names no secret."""

    uri: str
    """In weir's spelling; the constructor takes any spelling of Spark's."""
    storage: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,  # guard: P-4
    )
    wal_uri: str | None = None
    maker: str | None = None
    """The id of the table, in a statement that makes it: nobody else finds it yet (P-9)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", normalize(self.uri))
        if self.wal_uri is not None:
            object.__setattr__(self, "wal_uri", normalize(self.wal_uri))

    @staticmethod
    def of(options: Mapping[str, str]) -> Place:
        """From the options of a data source; `InvalidInput` without a path."""
        uri = located(options) if options.get("weir.name") else options.get("path")
        if not uri:
            raise InvalidInput(
                "weir needs the table's path: load(path), save(path), or OPTIONS (path '...') of"
                " CREATE TEMPORARY VIEW ... USING weir. Spark passes no options from CREATE TABLE"
                " in its own catalog to reads and writes: use names of a weir catalog"
                " (weir.spark.register(spark, catalog='weir', root='...')), add WITH (path ="
                " '...') to the query, or use a view"
            )
        return Place.at(str(uri), options)

    @staticmethod
    def at(uri: str, options: Mapping[str, str]) -> Place:
        """The table at `uri`, with the storage options and log location of `options`."""
        storage = {
            key[len(STORAGE) :]: value for key, value in options.items() if key.startswith(STORAGE)
        }
        exposed = sorted(key for key in storage if _SECRET.search(key))
        if exposed:
            logger.warning(
                "spark.secrets.exposed options=%s: Spark writes the options of a query to its event"
                " log and redacts only some of them; use storageOptionsFrom",
                ",".join(STORAGE + key for key in exposed),
            )
        name = options.get(FROM.lower())
        if name is not None:
            storage = _referenced(name) | storage
        return Place(uri, storage, options.get("waluri"), options.get("weir.maker"))

    @staticmethod
    def given(
        uri: str, storage_options: Mapping[str, str] | None, options: Mapping[str, str] | None
    ) -> Place:
        """From the arguments of a function that hands `options` on to the data source."""
        low = {name.lower(): text for name, text in dict(options or {}).items()}
        return Place.at(uri, {**low, **as_options(storage_options)})

    def current(self) -> weir.Table:
        """The table that is here now: for whatever is planned here, a read, a write or upkeep.

        It may have been resharded, or dropped and created again, since this process opened it: its
        record is read again, a list and a get. All work of this process shares one handle, and so
        its caches.
        """
        table = self._opened().table
        try:
            table.core.refresh()
        except NotAWeirTable:
            self.forget()
            table = self._opened().table
        return table

    def planned(self, table_id: UUID | str) -> weir.Table:
        """The table with that id: for tasks and later steps of what was planned on `current`.

        `NotAWeirTable` if another table is here now. No request where it is open.
        """
        wanted = str(table_id)
        if _id_of(self._opened().table) != wanted:
            self.forget()  # this process may still know one that was dropped here
        table = self._opened().table
        if _id_of(table) != wanted:
            raise NotAWeirTable(
                f"{self.uri}: the table was dropped and created again since this was planned; run"
                " it again"
            )
        return table

    def writers(self) -> ShardWriters:
        """The writers of the handle that `current` or `planned` returned."""
        return self._opened().writers

    def _opened(self) -> _Opened:
        key = self._key
        found = _OPEN.get(key)
        if found is None or found.storage != self.storage:  # credentials may rotate
            maker = None if self.maker is None else UUID(self.maker)
            table = weir.Table(
                open_core(
                    self.uri,
                    storage_options=dict(self.storage),
                    wal_uri=self.wal_uri,
                    maker=maker,
                )
            )
            if self.maker not in (None, _id_of(table)):
                raise replaced(self.uri)
            found = _Opened(table, ShardWriters(table.core), self.storage)
            _OPEN.pop(key, None)
            _OPEN[key] = found
            for oldest in list(_OPEN)[:-_MOST_OPEN]:
                _OPEN.pop(oldest, None)
            _keep_imports()
        return found

    def forget(self) -> None:
        """Drop the cached handle of a table that was removed."""
        _OPEN.pop(self._key, None)

    @property
    def _key(self) -> _Key:
        """Spark's workers are forks of one another."""
        return os.getpid(), self.uri, self.wal_uri, self.maker


def _id_of(table: weir.Table) -> str:
    return str(table.core.record.table_id)


@dataclass(frozen=True)
class _Opened:
    """What this process has open of one table."""

    table: weir.Table
    writers: ShardWriters
    storage: Mapping[str, str] = field(repr=False)


_MOST_OPEN: Final = 64
"""Tables of which a process keeps a handle, with its caches and writers."""
_Key = tuple[int, str, str | None, str | None]
_OPEN: dict[_Key, _Opened] = {}
"""One handle for each place, the one opened last at the end."""


def _keep_imports() -> None:
    """Exclude imported modules from garbage collection in a Spark worker; once.

    A worker that Spark reuses collects garbage after every task. Traversing the modules of weir,
    Lance and PySpark took 50 ms, longer than reading five million numbers, and they stay anyway.
    The driver is the user's program, and is left alone.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == "pyspark.daemon" and not gc.get_freeze_count():
        gc.freeze()


def located(options: Mapping[str, str]) -> str:
    """The URI of a table by its catalog name; without a name, the folder of its namespace.

    A name that contains a slash is a URI already.
    """
    name = options.get("weir.name", "")
    if "/" in name:
        return name
    root = options.get("weir.root", "")
    if not root:
        raise InvalidInput(
            "the catalog has no root: set spark.sql.catalog.<name>.root, as"
            " weir.spark.register(spark, catalog=..., root=...) does"
        )
    parts = [part for part in options.get("weir.namespace", "").split("/") if part]
    if any(part in (".", "..") or part.endswith(ENDING) for part in (*parts, name)):
        raise InvalidInput(
            f"{'.'.join([*parts, name])!r} is not a valid name: no part may be '.' or '..', or end"
            f" in {ENDING}"
        )
    return "/".join([root.rstrip("/") or "/", *parts, *([name + ENDING] if name else [])])


def resolved(name: str, known: Sequence[str]) -> str:
    """The name in `known` that `name` refers to: itself, or the one that differs only in case.

    This is how Spark resolves columns. An unknown name is returned as it is.
    """
    if name in known:
        return name
    like = [other for other in known if other.lower() == name.lower()]
    return like[0] if len(like) == 1 else name


def _referenced(name: str) -> dict[str, str]:
    """Storage options as JSON in an environment variable; the plan holds only its name (P-4)."""
    try:
        found = json.loads(os.environ[name])
        return {str(key): str(value) for key, value in found.items()}
    except (KeyError, ValueError, AttributeError):
        # Without the cause, which may quote the value.
        raise InvalidInput(
            f"option {FROM}: the environment variable {name!r} must hold a JSON object of storage"
            f" options, on the driver and on every executor (spark.executorEnv.{name})"
        ) from None


def as_options(storage: Mapping[str, str] | None) -> dict[str, str]:
    """Storage options as options of the data source."""
    return {f"{STORAGE}{name}": text for name, text in dict(storage or {}).items()}


def backquoted(name: str) -> str:
    """A name in Spark's SQL, whatever characters it holds."""
    return "`" + name.replace("`", "``") + "`"


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A yes-or-no option."""
    text = options.get(name.lower())
    if text is None:
        return default
    if str(text).lower() not in _TRUE | _FALSE:
        raise InvalidInput(f"option {name} must be true or false, got {text!r}")
    return str(text).lower() in _TRUE


def number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    """A whole-number option, or None."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise InvalidInput(f"option {name} is {text!r}, not a whole number") from None
    if value < least:
        raise InvalidInput(f"option {name} must be at least {least}, got {value}")
    return value


def names(options: Mapping[str, str], name: str) -> list[str] | None:
    """A list of columns: a JSON list, or comma-separated names."""
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"option {name} is {text!r}, not a JSON list ({error})") from error
        return [str(part) for part in found]
    return [part.strip() for part in text.split(",") if part.strip()]
