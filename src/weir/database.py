"""`connect`: the tables below one prefix, by name, as in LanceDB."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from weir import making
from weir.config import WriterConfig
from weir.env import SYSTEM, Env, takes_env
from weir.errors import CommitConflict, InvalidInput, NotAWeirTable, StoreDenied, WeirError
from weir.format import paths
from weir.format.expiry import Expire
from weir.format.schema_forms import SchemaLike
from weir.format.sharding import Sharding
from weir.store.open import normalize, open_store
from weir.table import Table

SUFFIX: Final = ".lance"
_NAME: Final = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_\-.]*")
_MAKING_LOOKS: Final = 50
_MAKING_WAIT: Final = 0.1  # seconds
_WORKERS: Final = 16

Name: TypeAlias = str | Sequence[str]
"""The name of a table or namespace; a list puts the enclosing namespaces before it."""


class Database:
    """The tables below one prefix; made by `weir.connect`. Holds no connection and no cache.

    A table is the folder `{uri}/{name}.lance`, where LanceDB finds it too. In a namespace it is
    `{uri}/{namespace}/{name}.lance`, named by a list: `["shop", "orders"]` is `lake.shop.orders` in
    Spark SQL. A namespace is a folder and exists while there is a table in it.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None, env: Env) -> None:
        """Use `weir.connect`."""
        self.uri = normalize(uri)
        self._options = dict(storage_options or {})
        self._env = env

    def __repr__(self) -> str:
        return f"Database({self.uri!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as its place; credentials travel only if they were given explicitly."""
        if self._env is not SYSTEM:
            raise TypeError(f"{self.uri}: a database with a custom `env` cannot be pickled")
        return _connected_again, (self.uri, self._options)

    def table_uri(self, name: Name) -> str:
        """Where the table of that name is, or would be. Contacts nothing.

        Raises `InvalidInput` for a name with anything but letters, digits, `_`, `-` and `.`.
        """
        *namespace, last = [name] if isinstance(name, str) else name or [""]
        if not _NAME.fullmatch(str(last)):
            raise InvalidInput(
                f"{last!r} is not a valid table name: use letters, digits, '_', '-' and '.', and"
                " do not start with '.'. For a table in a namespace pass a list, such as"
                " ['shop', 'orders']"
            )
        return f"{self._folder(namespace)}/{last}{SUFFIX}"

    def namespaces(self, namespace: Name = ()) -> list[str]:
        """The names of the namespaces, or of those in a namespace, sorted.

        A folder is none if it is a dataset itself, or holds only what stays of dropped tables. A
        listing, one for each name in it, and one or more to find a table in each namespace.
        """
        names = [name for name in self._folders(namespace) if _is_namespace(name)]
        folder = self._folder(namespace)
        found = self._env.threads.map(
            lambda name: self._has_tables(f"{folder}/{name}"), names, workers=_WORKERS
        )
        return [name for name, has_tables in zip(names, found, strict=True) if has_tables]

    def _has_tables(self, uri: str) -> bool:
        """True for a folder of datasets, or of folders that may have some. Not a dataset itself."""
        inner = self._folders_at(uri)
        if paths.VERSIONS in inner:
            return False
        return any(
            any(name == paths.VERSIONS or _is_shown(name) for name in self._folders_at(place))
            for place in (f"{uri}/{name}" for name in inner if _is_shown(name))
        )

    def _is_dataset(self, uri: str) -> bool:
        """True for a folder with versions: a table, or any other Lance dataset. One listing."""
        return paths.VERSIONS in self._folders_at(uri)

    def _folder(self, namespace: Name) -> str:
        parts = [namespace] if isinstance(namespace, str) else list(namespace)
        for part in parts:
            if not _is_namespace(str(part)):
                raise InvalidInput(
                    f"{part!r} is not a valid namespace name: use letters, digits, '_', '-' and"
                    f" '.'; do not start with '_' or '.', and do not end with {SUFFIX!r}"
                )
        return "/".join([self.uri, *parts])

    def _folders(self, namespace: Name) -> list[str]:
        return self._folders_at(self._folder(namespace))

    def _folders_at(self, uri: str) -> list[str]:
        folders, _ = open_store(uri, self._options, env=self._env).list_folder("")
        return sorted(folder.rstrip("/").rpartition("/")[2] for folder in folders)

    def create_table(
        self,
        name: Name,
        schema: SchemaLike,
        *,
        primary_key: str | Sequence[str] | None = None,
        sharding: Sharding | None = None,
        wal_uri: str | None = None,
        writer_defaults: WriterConfig | None = None,
        expire: Expire | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Make an empty table of that name and open it; see `weir.create`.

        `InvalidInput` when the table exists, unless `exist_ok`: then the existing table is opened,
        whatever its schema, also when another process is making it at the moment; and when an
        enclosing namespace is a table itself.
        """
        uri = self.table_uri(name)
        if exist_ok and self.exists(name):
            return self.open_table(name)
        try:
            return making.create(
                uri,
                schema,
                primary_key=primary_key,
                sharding=sharding,
                wal_uri=wal_uri,
                writer_defaults=writer_defaults,
                expire=expire,
                storage_options=self._options,
                env=self._env,
            )
        except (CommitConflict, making.Occupied):
            if not exist_ok:
                raise
            for _ in range(_MAKING_LOOKS):  # another process is making it
                if self.exists(name):
                    return self.open_table(name)
                self._env.clock.sleep(_MAKING_WAIT)
            raise

    def open_table(self, name: Name) -> Table:
        """Open the table of that name; `NotAWeirTable` lists the existing ones. Five requests."""
        try:
            return making.open(self.table_uri(name), storage_options=self._options, env=self._env)
        except NotAWeirTable as error:
            *namespace, last = [name] if isinstance(name, str) else name
            place = self._folder(namespace)
            message = f"{place} has no table {last!r}; existing tables: "
            message += ", ".join(self.tables(namespace)) or "none"
            if self._is_dataset(f"{place}/{last}"):
                message += f". There is a dataset at {place}/{last}, without {SUFFIX!r} at the end:"
                message += " open it by its path, with weir.open"
            inner = self.namespaces(namespace)
            if inner:
                message += f"; namespaces: {', '.join(inner)}. For a table in a namespace pass a"
                message += f" list, such as {[*namespace, inner[0], 'name']}"
            raise NotAWeirTable(message) from error

    def exists(self, name: Name) -> bool:
        """True when there is a table of that name. One listing, one read."""
        return making.exists(self.table_uri(name), storage_options=self._options, env=self._env)

    def tables(self, namespace: Name = ()) -> list[str]:
        """The names of all tables, or of those in a namespace, sorted. One listing, and two
        requests for each name in it.

        Lance datasets that are not weir tables are left out; `weir.enable` adopts them. A table
        whose record is damaged is named, too: opening it says what is wrong.
        """
        within = [namespace] if isinstance(namespace, str) else list(namespace)
        folders = self._folders(within)
        names = sorted(n.removesuffix(SUFFIX) for n in folders if n.endswith(SUFFIX))
        names = [name for name in names if _NAME.fullmatch(name)]
        there = self._env.threads.map(
            lambda name: self._is_shown_table([*within, name]), names, workers=_WORKERS
        )
        return [name for name, is_table in zip(names, there, strict=True) if is_table]

    def _is_shown_table(self, name: Name) -> bool:
        """Also one whose record cannot be read: opening it says why, and it hides no other."""
        try:
            return self.exists(name)
        except WeirError as error:
            if error.kind != "data" and not isinstance(error, StoreDenied):
                raise
            return True

    def drop_table(self, name: Name, *, missing_ok: bool = False) -> None:
        """Delete the table of that name with all its rows; see `weir.drop`.

        Raises `NotAWeirTable` when there is none, unless `missing_ok`.
        """
        if missing_ok and not self.exists(name):
            return
        try:
            making.drop(self.table_uri(name), storage_options=self._options, env=self._env)
        except NotAWeirTable:
            if missing_ok:
                return  # another process was faster
            self.open_table(name)  # its error lists the existing tables
            raise


def _is_namespace(name: str) -> bool:
    return _is_shown(name) and not name.endswith(SUFFIX)


def _is_shown(name: str) -> bool:
    """False for the folders of weir and Lance within a table."""
    return bool(_NAME.fullmatch(name)) and name[0] != "_"


@takes_env
def connect(
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    env: Env = SYSTEM,
) -> Database:
    """The tables below `uri`, by name. Contacts nothing: a wrong bucket shows at the first call.

    `storage_options` apply to every table, as in `weir.open`.
    """
    return Database(os.fspath(uri), storage_options, env)


def _connected_again(uri: str, storage_options: Mapping[str, str]) -> Database:
    return Database(uri, storage_options, SYSTEM)
