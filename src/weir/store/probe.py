"""Proof by racing creates that a store keeps put-if-absent, for `weir create` and `weir doctor`.

Some stores ignore the condition and report success. No fence would hold there, so weir refuses
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weir.env import SYSTEM, Env
from weir.errors import StoreError, StoreUnsuitable
from weir.format import paths
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing, Store

ROUNDS = 5
CREATORS = 8
_ROUNDS_AT_CREATION = 3
_CREATORS_AT_CREATION = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One property, whether it held, and how many seconds the check took."""

    name: str
    passed: bool
    took: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe found. `latencies` holds the median seconds of one call, by verb."""

    uri: str
    checks: tuple[Check, ...]
    latencies: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if the store kept every promise that weir needs."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)


def probe(
    store: Store, env: Env = SYSTEM, *, rounds: int = ROUNDS, creators: int = CREATORS
) -> ProbeReport:
    """Test every promise weir relies on, under `_weir/probe/<id>/`, and delete what was written.

    Raises `StoreError` if the store cannot be reached at all (`StoreDenied` for credentials); a
    broken promise is a failed check. About `rounds * (creators + 1) + 20` requests.
    """
    return _Probe(store, env, rounds, creators).run()


def require_put_if_absent(store: Store, env: Env = SYSTEM) -> ProbeReport:
    """Run a short probe and return its report; `StoreUnsuitable` names promises that were broken.

    Milliseconds on most stores; about a second on SeaweedFS, which makes losers of a race wait.
    """
    report = probe(store, env, rounds=_ROUNDS_AT_CREATION, creators=_CREATORS_AT_CREATION)
    if not report.passed:
        broken = "; ".join(f"{check.name}: {check.detail}" for check in report.failures)
        raise StoreUnsuitable(
            f"{store.uri} breaks guarantees that weir's fences need ({broken}); use another store"
        )
    return report


def prove(stores: Sequence[Store], env: Env = SYSTEM) -> dict[str, object]:
    """Probe each store before a log may begin in it (S-8); what the table's record keeps of it.

    `StoreUnsuitable` for the first one that does not keep put-if-absent. About 60 requests each.
    """
    passed: dict[str, list[str]] = {}
    for store in stores:
        report = require_put_if_absent(store, env)
        passed[store.uri] = [check.name for check in report.checks if check.passed]
    return {"passed": passed, "at": env.clock.wall()}


class _Probe:
    def __init__(self, store: Store, env: Env, rounds: int, creators: int) -> None:
        self._store = store
        self._env = env
        self._rounds = rounds
        self._creators = creators
        self._folder = paths.probe_dir(env.new_id())
        self._checks: list[Check] = []
        self._latencies: dict[str, list[float]] = {}

    def run(self) -> ProbeReport:
        try:
            self._check("race of creates", self._race)
            self._check("second create refused", self._second_create)
            self._check("read after write", self._read_after_write)
            self._check("list after write", self._list_after_write)
            self._check("delete", self._delete)
        finally:
            # By a listing, not from memory: a create whose answer was lost may have been applied.
            with contextlib.suppress(StoreError):
                self._store.delete([meta.path for meta in self._store.list(self._folder)])
        medians = {verb: sorted(took)[len(took) // 2] for verb, took in self._latencies.items()}
        return ProbeReport(self._store.uri, tuple(self._checks), medians)

    def _check(self, name: str, run: Callable[[], str]) -> None:
        """Record a check; `run` returns a description of what went wrong, or an empty string."""
        start = self._env.clock.boottime()
        problem = run()
        took = self._env.clock.boottime() - start
        self._checks.append(Check(name, not problem, took, problem))

    def _timed(self, verb: str, call: Callable[[], object]) -> None:
        start = self._env.clock.boottime()
        try:
            call()
        finally:
            self._latencies.setdefault(verb, []).append(self._env.clock.boottime() - start)

    def _create(self, path: str, data: bytes) -> bool | None:
        """True for created, False for refused, None for no answer."""
        try:
            self._timed("put_if_absent", lambda: self._store.put_if_absent(path, data))
        except ObjectExists:
            return False
        except LostAnswer:
            return None
        return True

    def _race(self) -> str:
        # All rounds at once: a store may make losers wait (SeaweedFS up to seconds), but only once.
        # Random bodies: a creator would mistake another's equal bytes for its own.
        tries = [
            (f"{self._folder}/race-{round_}", f"{creator} {self._env.new_id()}".encode())
            for round_ in range(self._rounds)
            for creator in range(self._creators)
        ]
        answers = self._env.threads.map(
            lambda attempt: self._create(*attempt), tries, workers=len(tries)
        )
        for path in dict.fromkeys(path for path, _ in tries):
            outcomes = [
                (body, won)
                for (tried, body), won in zip(tries, answers, strict=True)
                if tried == path
            ]
            winners = [body for body, won in outcomes if won]
            unknown = [body for body, won in outcomes if won is None]
            if len(winners) > 1:
                return f"{len(winners)} of {self._creators} concurrent creates succeeded"
            if not winners and not unknown:
                return f"none of {self._creators} concurrent creates succeeded"
            if self._read(path) not in (winners or unknown):
                return "the object does not hold what its creator wrote"
        return ""

    def _second_create(self) -> str:
        path = f"{self._folder}/twice"
        first = f"first {self._env.new_id()}".encode()
        self._create(path, first)
        if self._create(path, f"second {self._env.new_id()}".encode()) is not False:
            return "a create of an existing object was not refused"
        return "" if self._read(path) == first else "a refused create replaced the object"

    def _read_after_write(self) -> str:
        path = f"{self._folder}/read"
        if self._read(path) is not None:
            return "an object that was never written was found"
        body = str(self._env.new_id()).encode()
        self._create(path, body)  # after a miss, to catch a cached absence
        return "" if self._read(path) == body else "an object just written was not read back"

    def _list_after_write(self) -> str:
        path = f"{self._folder}/listed/one"
        self._create(path, str(self._env.new_id()).encode())
        found: list[str] = []
        self._timed(
            "list",
            lambda: found.extend(meta.path for meta in self._store.list(f"{self._folder}/listed")),
        )
        return "" if found == [path] else "an object just written was not listed"

    def _delete(self) -> str:
        path = f"{self._folder}/deleted"
        self._create(path, str(self._env.new_id()).encode())
        self._timed("delete", lambda: self._store.delete([path, path]))
        if self._read(path) is not None:
            return "a deleted object was still read"
        return "" if self._create(path, b"again") else "a deleted object could not be created again"

    def _read(self, path: str) -> bytes | None:
        found: list[bytes] = []
        try:
            self._timed("get", lambda: found.append(self._store.get(path).data))
        except ObjectMissing:
            return None
        return found[0]
