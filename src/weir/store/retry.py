"""Bounded retries around a store, which also settle the outcome of lost answers (F-9).

Reads, lists, deletes, plain puts and copies are repeated as they are. A put-if-absent is repeated
with the same bytes; if a retry finds an object, that object is read and compared: equal bytes mean
that the first attempt was applied. Callers make their bytes unique (a writer id, an epoch), since
another writer's equal bytes would count as theirs. If the outcome stays unknown, the call raises
`LostAnswer` (F-11).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from weir.env import Env
from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable
from weir.meters import REQUEST_SECONDS
from weir.store.api import (
    SOMETIME,
    Blob,
    Bytes,
    Folder,
    Items,
    LostAnswer,
    Meta,
    ObjectExists,
    ObjectMissing,
    Parts,
    RootMissing,
    Store,
    is_local,
)

T = TypeVar("T")

logger = logging.getLogger("weir.store")

_FINAL = (StoreDenied, StoreUnsuitable, RootMissing)
"""Errors that a retry cannot change."""
_TOGETHER: Final = 64
"""Requests in flight of many: a read of a thousand shards waits for rounds of requests, not for
each request in turn."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to retry. Sleeps are uniform up to a doubling bound (full jitter)."""

    attempts: int = 6
    """Tries per call, the first included."""
    first_delay: float = 0.1
    """Bound of the first sleep in seconds; doubles each time."""
    longest_delay: float = 5.0
    """The largest bound of a sleep, where the doubling ends."""
    deadline: float = 60.0
    """No attempt begins after this many seconds; keep it below the credentials' lifetime."""

    def __post_init__(self) -> None:
        """Refuse a policy without an attempt, or with a negative delay."""
        if self.attempts < 1:
            raise InvalidInput(f"attempts must be at least 1, not {self.attempts}")
        if min(self.first_delay, self.longest_delay, self.deadline) < 0:
            raise InvalidInput("delays and the deadline must not be negative")


DEFAULT = RetryPolicy()


class RetryingStore(Store):
    """Any store, with retries. `requests` counts calls to the inner store by verb, retries too."""

    def __init__(self, inner: Store, env: Env, policy: RetryPolicy = DEFAULT) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()
        self._env = env
        self._policy = policy

    def __repr__(self) -> str:
        return f"RetryingStore({self.inner!r})"

    @property
    def uri(self) -> str:
        """The inner store's."""
        return self.inner.uri

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """Create, settling lost answers; `LostAnswer` if the outcome is unknown after the retries.

        A collision at the first attempt is raised at once: the object there cannot be ours.
        """
        # The first attempt is separate so that the common case costs one call and no closure.
        if not self._env.meters.is_on:
            return self._put_if_absent(path, data)
        return self._timed("put_if_absent", lambda: self._put_if_absent(path, data))

    def _put_if_absent(self, path: str, data: Bytes) -> float | None:
        self.requests["put_if_absent"] += 1
        try:
            return self.inner.put_if_absent(path, data)
        except _FINAL:
            raise
        except StoreError as error:
            return self._resolve_lost_answer(path, data, error)

    def put(self, path: str, data: Bytes) -> None:
        """Repeated: the last write wins, and it is ours either way."""
        self._repeat("put", lambda: self.inner.put(path, data))

    def put_parts(self, path: str, parts: Parts) -> None:
        """Repeated from the first part on."""
        self._repeat("put_parts", lambda: self.inner.put_parts(path, parts))

    def get(self, path: str) -> Blob:
        """Repeated, but never for a missing object."""
        if not self._env.meters.is_on:
            return self._get(path)
        return self._timed("get", lambda: self._get(path))

    def _get(self, path: str) -> Blob:
        self.requests["get"] += 1
        try:
            return self.inner.get(path)
        except _FINAL:
            raise
        except StoreError as error:
            return self._again("get", lambda: self.inner.get(path), error)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Repeated."""
        return self._repeat("get_range", lambda: self.inner.get_range(path, start, length))

    def head(self, path: str) -> Meta | None:
        """Repeated."""
        return self._repeat("head", lambda: self.inner.head(path))

    def list(self, prefix: str) -> Iterator[Meta]:
        """Repeated from the start after a failure; objects already yielded are skipped."""
        seen: set[str] = set()
        failed: StoreError | None = None
        attempts = iter(self._pauses())
        while True:
            self.requests["list"] += 1
            try:
                for meta in self.inner.list(prefix):
                    if failed is None or meta.path not in seen:
                        seen.add(meta.path)
                        yield meta
                return
            except _FINAL:
                raise
            except StoreError as error:
                failed = error
            if next(attempts, None) is None:
                raise failed

    def list_folder(self, prefix: str) -> Folder:
        """Repeated."""
        return self._repeat("list_folder", lambda: self.inner.list_folder(prefix))

    def delete(self, paths: Sequence[str]) -> None:
        """Repeated: a missing object counts as deleted (G-12)."""
        self._repeat("delete", lambda: self.inner.delete(paths))

    def now(self) -> float:
        """Repeated."""
        return self._repeat("now", self.inner.now)

    def each(self, request: Callable[[str], T], names: Sequence[str]) -> Items[T]:
        """Concurrently, each with retries of its own: where one request in a hundred fails, 512 of
        them hardly ever succeed together. Files one after the other: reading one takes less time
        than handing it to another thread."""
        workers = 1 if is_local(self.inner) else _TOGETHER
        return self._env.threads.map(request, [*names], workers=workers)

    def _timed(self, verb: str, call: Callable[[], T]) -> T:
        return self._env.meters.timed(call, self._env.clock, REQUEST_SECONDS, verb)

    def _repeat(self, verb: str, call: Callable[[], T]) -> T:
        return self._timed(verb, lambda: self._try(verb, call))

    def _try(self, verb: str, call: Callable[[], T]) -> T:
        self.requests[verb] += 1
        try:
            return call()
        except _FINAL:
            raise
        except StoreError as error:
            return self._again(verb, call, error)

    def _again(self, verb: str, call: Callable[[], T], last: StoreError) -> T:
        for _ in self._pauses():
            self.requests[verb] += 1
            try:
                return call()
            except _FINAL:
                raise
            except StoreError as error:
                last = error
        raise last

    def _resolve_lost_answer(self, path: str, data: Bytes, last: StoreError) -> float | None:
        """Repeat a put-if-absent whose first attempt failed, until its outcome is known.

        Much time may have passed since the first attempt; the returned time says so (F-18).
        """
        lost = last if isinstance(last, LostAnswer) else None
        for attempt in self._pauses():
            self.requests["put_if_absent"] += 1
            try:
                stored = self.inner.put_if_absent(path, data)
            except ObjectExists:
                try:
                    found = self._find(path)
                except StoreError as error:
                    # An object exists, but reading it failed: whose it is stays unknown.
                    raise LostAnswer(
                        f"{self.uri}/{path}: an object exists, but it could not be read to find out"
                        f" whether this write created it: {error}"
                    ) from error
                if found is None:
                    raise LostAnswer(
                        f"{self.uri}/{path}: an object existed, but was deleted before it could be"
                        " read to find out whether this write created it"
                    ) from None
                if found.data != bytes(data):  # guard: F-9 always test_retry
                    raise
                logger.info("store.put.settled path=%s/%s attempts=%d", self.uri, path, attempt)
                return found.meta.last_modified
            except Exception as error:
                if isinstance(error, StoreError) and not isinstance(error, _FINAL):
                    last = error
                    lost = error if isinstance(error, LostAnswer) else lost
                    continue
                # This attempt was refused; the outcome of an earlier one is still unknown.
                if lost:  # guard: F-11 test_outcomes
                    raise lost from error
                raise
            else:
                logger.info("store.put.settled path=%s/%s attempts=%d", self.uri, path, attempt)
                return SOMETIME if stored is None else stored  # guard: F-18 never
        raise lost or last

    def _find(self, path: str) -> Blob | None:
        try:
            return self.get(path)
        except ObjectMissing:
            return None

    def _pauses(self) -> Iterator[int]:
        """Sleep, then yield the number of the attempt to make, as long as the policy allows."""
        policy = self._policy
        clock = self._env.clock
        end = clock.boottime() + policy.deadline
        bound = policy.first_delay
        for attempt in range(2, policy.attempts + 1):
            pause = self._env.random.uniform(0, bound)
            if clock.boottime() + pause > end:
                return
            clock.sleep(pause)
            yield attempt
            bound = min(bound * 2, policy.longest_delay)
