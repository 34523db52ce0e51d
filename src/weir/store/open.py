"""Opens the store at a URI with `storage_options`, and derives pylance's options for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput
from weir.store.api import Store
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.store.objects import ObjStore, check_option
from weir.store.paced import PacedStore
from weir.store.retry import RetryingStore

_AUTHORITY = re.compile(r"[A-Za-z0-9._\-]+(@[A-Za-z0-9.\-]+)?")
"""A bucket, or a container and account; nothing that could become another host in a request."""
_DOTS = re.compile(r"(\.|%2e){1,2}", re.IGNORECASE)

SCHEMES = ("file", "memory", "s3", "gs", "az", "abfss")

_HADOOP = {"s3a": "s3", "s3n": "s3"}
_HADOOP_FILE = re.compile(r"file:/(?!/)", re.IGNORECASE)

FSYNC = "weir_fsync"
"""Local files: 'true' syncs file and folders on every write; `weir.store.local` states the cost."""

_LANCE_ONLY = {
    "client_max_retries",
    "client_retry_timeout",
    "download_retry_count",
    "expires_at_millis",
    "refresh_offset_millis",
}
"""Options of Lance that obstore does not know; passed on to pylance, ignored here."""

_TO_OBSTORE = {"google_storage_token": "bearer_token"}
_TO_LANCE = {
    "aws_allow_http": "allow_http",
    "bearer_token": "google_storage_token",
    "google_bearer_token": "google_storage_token",
}


def normalize(uri: str) -> str:
    """The spelling weir keeps: an absolute path, or `scheme://bucket/prefix` without a last slash.

    Hadoop's `file:/path`, `s3a://` and `s3n://` are understood, too.
    Raises `InvalidInput` for an unknown scheme, a missing bucket, or credentials in the URI.
    """
    if not uri or "\x00" in uri:
        raise InvalidInput(
            "the URI is empty or holds a NUL; give a path or an s3://, gs://, az:// URI"
        )
    if _HADOOP_FILE.match(uri):
        uri = "file://" + uri[len("file:") :]
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return os.path.abspath(os.path.expanduser(uri))  # noqa: PTH100, PTH111 (keep symlinks)
    scheme = scheme.lower()
    scheme = _HADOOP.get(scheme, scheme)
    if scheme not in SCHEMES:
        known = ", ".join(name + "://" for name in SCHEMES)
        raise InvalidInput(f"unknown scheme {scheme!r}; weir knows local paths and {known}")
    if scheme == "file":
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise InvalidInput(
                f"file:// URIs name no host, but {host!r} was given; write file:///path"
            )
        return os.path.abspath("/" + unquote(path))  # noqa: PTH100 (keep symlinks)
    parts = urlsplit(f"{scheme}://{rest}")
    if parts.password is not None or (parts.username is not None and scheme != "abfss"):
        raise InvalidInput(
            f"{scheme}:// URI holds credentials; pass them in storage_options instead"
        )
    if parts.query or parts.fragment:
        raise InvalidInput(
            f"{scheme}:// URI holds a query or fragment; use storage_options for settings"
        )
    if not parts.netloc:
        raise InvalidInput(f"{uri!r} names no bucket; write {scheme}://bucket/prefix")
    if scheme != "memory" and not _AUTHORITY.fullmatch(parts.netloc):
        raise InvalidInput(f"{uri!r}: {parts.netloc!r} is not a valid bucket name")
    if any(_DOTS.fullmatch(part) for part in parts.path.split("/")):
        # Lance resolves them, obstore does not: the two would work in different places (G-13).
        raise InvalidInput(f"{uri!r} holds '.' or '..'; write the resolved path")
    if "//" in parts.path.strip("/"):
        raise InvalidInput(f"{uri!r} holds an empty name ('//'); write one slash")
    if "%" in parts.path and scheme != "memory":
        # Lance decodes it, obstore does not: the table's files would be under two names.
        raise InvalidInput(
            f"{uri!r} holds a '%', which Lance and weir would read as different names; choose a"
            " name of letters, digits, '-', '_', '.' and '='"
        )
    return f"{scheme}://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")


def require_recorded(*uris: str | None) -> None:
    """`ValueError` unless each URI of a record is spelled as weir writes it.

    A relative path, or one that must be resolved or decoded first, would name another place in
    every process. Credentials are sent to the services named by `storage_options` or the
    environment, never to a host that a record names (G-13).
    """
    for uri in uris:
        if uri is not None and not is_normal(uri):  # guard: G-13 test_inside_the_table
            raise ValueError(f"{uri!r} is not an absolute, normalized URI as weir writes it")


def is_normal(uri: str) -> bool:
    """True for a URI that weir can open, and spells like this."""
    try:
        return normalize(uri) == uri
    except InvalidInput:
        return False


def open_store(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    env: Env = SYSTEM,
    must_exist: bool = False,
) -> Store:
    """The store at that URI. Sends no request: a wrong bucket or key shows at the first call.

    `storage_options` takes obstore's and Lance's spellings; options of other kinds of store are
    ignored (one set may serve a table and its WAL store). Missing options come from the environment
    (AWS_*, GOOGLE_*, AZURE_*). `must_exist`: a local folder is never created, and while it is gone
    every request fails (`RootMissing`); object stores have no folders, but a bucket may be gone.
    Raises `InvalidInput` naming an unknown option or scheme.
    """
    if env.places is not None:
        found: Store = env.places.store(normalize(uri))
        return found if env.pace is None else PacedStore(found, env.pace)
    bare = open_bare(uri, storage_options, env=env, must_exist=must_exist)
    return RetryingStore(bare if env.pace is None else PacedStore(bare, env.pace), env)


def open_bare(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    env: Env = SYSTEM,
    must_exist: bool = False,
) -> Store:
    """Like `open_store`, without the retries around it."""
    place = normalize(uri)
    options = _texts(storage_options)
    scheme = place.partition("://")[0] if "://" in place else "file"
    fsync = _flag(options.pop(FSYNC, "false"), FSYNC)
    options.pop("weir_allow", None)  # read by `weir.store.consent`, which is above
    if scheme in ("file", "memory"):
        for key in options:
            if key not in _LANCE_ONLY:
                check_option(_TO_OBSTORE.get(key, key))
        if scheme == "file":
            return LocalStore(place, fsync=fsync, must_exist=must_exist, env=env)
        name, _, prefix = place.partition("://")[2].partition("/")
        return MemoryStore(name, prefix, env=env)
    config = {
        _TO_OBSTORE.get(key, key): value for key, value in options.items() if key not in _LANCE_ONLY
    }
    return ObjStore(place, config, must_exist=must_exist, env=env)


def lance_options(uri: str, storage_options: Mapping[str, str] | None) -> dict[str, str] | None:
    """The options pylance needs for the same place, or None if it needs none. Never print them.

    A local table gets them too: a clone may share files with a parent on another store.
    """
    normalize(uri)
    options = {
        _TO_LANCE.get(key, key): value
        for key, value in _texts(storage_options).items()
        if not key.startswith("weir_")
    }
    return options or None


def _texts(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """The options with lower-case keys and text values, as obstore and Lance both read them."""
    texts: dict[str, str] = {}
    given: Mapping[Any, Any] = storage_options or {}
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str | bool | int):
            raise InvalidInput(
                f"storage_options: key {key!r} must be a string, its value a string, bool or int"
            )
        texts[key.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def _flag(value: str, name: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise InvalidInput(f"storage_options: {name!r} must be 'true' or 'false'")
    return value.lower() in ("true", "1")
