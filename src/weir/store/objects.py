"""S3, Google Cloud Storage and Azure through obstore; only `object_errors` imports it too.

The client's own retries are off: a put-if-absent that the client repeats would collide with its own
first attempt and report a conflict that never happened (F-9). `weir.store.retry` does the retries
and knows which outcomes were ambiguous.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from weir.env import SYSTEM, Env, ForkGuard
from weir.errors import InvalidInput, StoreError
from weir.format.paths import clock_path
from weir.store.api import (
    Blob,
    Bytes,
    Folder,
    Meta,
    ObjectMissing,
    Parts,
    RootMissing,
    Store,
)
from weir.store.object_errors import OutOfRange, headline, says_no_bucket, translate
from weir.store.paths import check, check_folder

T = TypeVar("T")

_TIMEOUTS = {"timeout": "60s", "connect_timeout": "5s"}
"""For a whole request, body included, and for connecting; `storage_options` may override them."""
_PART_BYTES = 32 << 20
"""S3 takes 10,000 parts, so an object may have 312 GiB; a part must be sent within a minute."""
_PARTS_AT_ONCE = 2
_CONDITIONAL = {"conditional_put", "aws_conditional_put"}
_ACCOUNT = {"account_name", "azure_account_name", "azure_storage_account_name"}
_LIST_PAGE = 1000
_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "timeout",
    "user_agent",
}
"""Options of the HTTP client. They are passed apart from the store's: given any client option,
obstore ignores those in the configuration of a GCS store (0.12.1)."""
_ADDRESS = re.compile(
    r"https?://[A-Za-z0-9.\-_]+(?P<port>:\d+)?(/[^\s?#]*)?"
    r"|https?://\[[0-9a-fA-F:]+\](?P<port6>:\d+)?/?"
)
_LAST_PORT = 65_535

_RUNTIME: dict[str, ForkGuard] = {}
"""The process of obstore's threads, once it was used: in a forked child every call would hang."""

_KINDS: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore, "abfss": AzureStore}


class ObjStore(Store):
    """One prefix of one bucket."""

    def __init__(
        self, uri: str, config: Mapping[str, str], *, must_exist: bool = False, env: Env = SYSTEM
    ) -> None:
        """`must_exist`: while the bucket is gone, a request that says so is `RootMissing` (S-1)."""
        self._must_exist = must_exist
        self._uri = uri.rstrip("/")
        self._scheme = uri.partition("://")[0]
        self._env = env
        options: dict[str, Any] = {
            key: value for key, value in config.items() if _belongs(key, self._scheme)
        }
        bucket, _, prefix = self._uri.partition("://")[2].partition("/")
        if self._scheme == "abfss":  # abfss://container@account.dfs.core.windows.net/prefix
            bucket, _, host = bucket.partition("@")
            if host and not options.keys() & _ACCOUNT:
                options["account_name"] = host.partition(".")[0]
        if self._scheme == "s3" and not options.keys() & _CONDITIONAL:
            options["conditional_put"] = "etag"
        client: dict[str, Any] = {
            **_TIMEOUTS,
            **{key: options.pop(key) for key in _CLIENT & options.keys()},
        }
        if "aws_allow_http" in options:
            client["allow_http"] = options.pop("aws_allow_http")
        for key, value in options.items():
            if key.endswith(("endpoint", "base_url")) and not _is_address(value):
                # obstore would panic at the first request.
                raise InvalidInput(
                    f"{self._uri}: the storage option {key!r} is not a valid address; write it as"
                    " https://host or https://host:port"
                )
        try:
            # Not from_url: it panics on client options such as allow_http in the config (0.12.1).
            self._store = _KINDS[self._scheme](
                bucket,
                prefix=prefix or None,
                config=options,
                client_options=client,
                retry_config={"max_retries": 0},
            )
        except (exceptions.BaseError, ValueError) as error:
            raise self._unusable(error) from None

    def __repr__(self) -> str:
        return f"ObjStore({self._uri!r})"

    @property
    def uri(self) -> str:
        """The root's URI."""
        return self._uri

    def put_if_absent(self, path: str, data: Bytes) -> None:
        """One PUT with `If-None-Match: *`. obstore does not expose the date of the response."""
        check(path)
        self._run(
            path,
            lambda: obstore.put(self._store, path, data, mode="create", use_multipart=False),
            write=True,
        )

    def put(self, path: str, data: Bytes) -> None:
        """One PUT; several for a large object."""
        check(path)
        self._run(path, lambda: obstore.put(self._store, path, data), write=True)

    def put_parts(self, path: str, parts: Parts) -> None:
        """A multipart upload: no part comes near the size or time limit of one PUT."""
        check(path)
        failed: list[BaseException] = []

        def checked() -> Iterator[bytes]:
            try:
                yield from parts()
            except BaseException as error:
                failed.append(error)  # obstore would replace it by an error of its own
                raise

        def upload() -> None:
            try:
                obstore.put(
                    self._store,
                    path,
                    checked(),
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except BaseException:
                if failed:
                    raise failed[0] from None
                raise

        self._run(path, upload, write=True)

    def get(self, path: str) -> Blob:
        """One GET."""
        check(path)

        def fetch() -> Blob:
            result = obstore.get(self._store, path)
            data = result.bytes().to_bytes()
            return Blob(data, _meta(path, result.meta))

        return self._run(path, fetch)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """One ranged GET, plus a HEAD if the range begins at or after the object's end."""
        check(path)
        if length > 0:
            with contextlib.suppress(OutOfRange):
                return self._run(
                    path,
                    lambda: obstore.get_range(
                        self._store, path, start=start, length=length
                    ).to_bytes(),
                )
        meta = self.head(path)
        if meta is None:
            raise ObjectMissing(path)
        if length <= 0 or start >= meta.size:
            return b""
        raise StoreError(f"{self._uri}/{path}: the store refused bytes {start} to {start + length}")

    def head(self, path: str) -> Meta | None:
        """One HEAD."""
        check(path)
        try:
            return self._run(path, lambda: _meta(path, obstore.head(self._store, path)))
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> Iterator[Meta]:
        """One LIST per thousand objects."""
        folder = check_folder(prefix)
        pages = iter(obstore.list(self._store, folder or None, chunk_size=_LIST_PAGE))
        while page := self._run(folder, lambda: next(pages, None)):
            yield from [_meta(item["path"], item) for item in page]

    def list_folder(self, prefix: str) -> Folder:
        """One LIST with a delimiter per thousand entries."""
        folder = check_folder(prefix)
        result = self._run(folder, lambda: obstore.list_with_delimiter(self._store, folder or None))
        folders = [name.rstrip("/").rpartition("/")[2] for name in result["common_prefixes"]]
        return folders, [_meta(item["path"], item) for item in result["objects"]]

    def delete(self, paths: Sequence[str]) -> None:
        """One bulk request per thousand objects on S3, one each elsewhere."""
        if not paths:
            return
        for path in paths:
            check(path)
        try:
            self._run(paths[0], lambda: obstore.delete(self._store, list(paths)), write=True)
        except ObjectMissing:
            # Some stores stop a bulk delete at the first missing object; delete one by one (G-12).
            for path in paths:
                with contextlib.suppress(ObjectMissing):
                    self._run(path, lambda path=path: obstore.delete(self._store, path), write=True)  # type: ignore[misc]

    def now(self) -> float:
        """The timestamp the store gives an object written now: a PUT, a HEAD and a DELETE.

        obstore does not expose the time of a response, and an offset between two clocks must not be
        remembered (G-3). Most stores stamp whole seconds.
        """
        path = clock_path(self._env.new_id())
        self.put(path, b"now")
        try:
            meta = self.head(path)
        finally:
            with contextlib.suppress(StoreError):
                self.delete([path])
        if meta is None:
            raise StoreError(f"{self._uri}: an object just written was not found; try again")
        return meta.last_modified

    def _run(self, path: str, call: Callable[[], T], *, write: bool = False) -> T:
        _RUNTIME.setdefault("home", ForkGuard(self._env))
        if _RUNTIME["home"].is_forked:
            raise InvalidInput(
                f"{self._uri}: this process was forked from one that had used an object store, and"
                " the store's client does not work after a fork; start processes with spawn or"
                " forkserver"
            )
        try:
            return call()
        except (exceptions.BaseError, OSError, ValueError) as error:
            # The cause is dropped: a response's body may quote parts of the credentials.
            if self._must_exist and says_no_bucket(str(error)):  # guard: S-1 test_wal_store
                raise RootMissing(f"{self._uri} is gone: its bucket was deleted") from None
            raise translate(error, uri=self._uri, path=path, write=write) from None

    def _unusable(self, error: Exception) -> Exception:
        # A value may be a secret, so the library's message is repeated only if it quotes nothing.
        words = headline(error)
        detail = "" if '"' in words or "'" in words or "/" in words else f" ({words})"
        return InvalidInput(f"{self._uri}: the storage_options do not fit this store{detail}")


def check_option(key: str) -> None:
    """Raise `InvalidInput` for a storage option that no kind of store knows."""
    if not any(_knows(scheme, key) for scheme in ("s3", "gs", "az")):
        raise InvalidInput(f"storage_options: {key!r} is unknown; remove or correct it")


def _belongs(key: str, scheme: str) -> bool:
    """False for an option of another kind of store; a table may use two kinds (S-1)."""
    if _knows(scheme, key):
        return True
    check_option(key)
    return False


def _is_address(text: str) -> bool:
    port = _ADDRESS.fullmatch(text)
    return port is not None and int((port["port"] or port["port6"] or ":1")[1:]) <= _LAST_PORT


@functools.cache
def _knows(scheme: str, key: str) -> bool:
    """Ask obstore, which knows every spelling, by building a store that is never used."""
    try:
        _KINDS[scheme]("probe", config={key: "true"})
    except exceptions.UnknownConfigurationKeyError:
        return False
    except (exceptions.BaseError, ValueError):
        return True  # the key is known; its value is bad, or another option is missing
    return True


def _meta(path: str, raw: Any) -> Meta:
    # Whole seconds: GCS gives milliseconds in a listing but not in a head, and the two must agree.
    # Azure quotes an ETag in a head and not in a listing.
    etag = raw["e_tag"] and raw["e_tag"].strip('"')
    return Meta(path, raw["size"], float(int(raw["last_modified"].timestamp())), etag)
