"""A store whose every answer is drawn from the seed: kept promises, broken connections.

It never applies half a write, forgets an applied one, or lets two put-if-absent of one path
succeed. All else happens: a write is refused, loses its answer with or without being applied, is
applied much later (even after its sender died or the path was collected), is applied twice, is slow
or throttled; a listing comes in pages while objects change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simulator.scheduler import Actor, Killed
from simulator.truth import Violation
from simulator.world import Late, Shelf, World, short, split_folder
from weir.errors import StoreDenied, StoreError
from weir.store.api import (
    Blob,
    Bytes,
    Folder,
    LostAnswer,
    Meta,
    ObjectExists,
    ObjectMissing,
    Parts,
    RootMissing,
    Store,
)
from weir.store.paths import check, check_folder

T = TypeVar("T")


class SimStore(Store):
    """One actor's client of a shelf; implements `weir.store.api.Store`."""

    def __init__(self, world: World, uri: str, actor: Actor) -> None:
        self._uri = uri
        self._disk, self._lead = split_folder(uri)
        self.actor = actor
        self._w = world
        self._s = world.scheduler

    @property
    def uri(self) -> str:
        """See `Store`."""
        return self._uri

    @property
    def shelf(self) -> Shelf:
        """The store at the URI, as the actor sees it now.

        A folder of a disk that does not hold it, or is not mounted, is an error, as of a real one.
        """
        found = self._w.seen_by(self.actor, self._disk)
        if self._lead and self.uri.startswith("/") and not found.names(self._lead[:-1]):
            raise RootMissing(f"{self.uri} is gone: the simulated disk does not hold it")
        return found

    def _blob(self, path: str) -> Blob | None:
        found = self.shelf.blobs.get(self._lead + path)
        return None if found is None else Blob(found.data, self._own(found.meta))

    def _own(self, meta: Meta) -> Meta:
        """With the path below this store's own folder."""
        return replace(meta, path=meta.path[len(self._lead) :]) if self._lead else meta

    # -- writes ----------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """See `Store`."""
        body = bytes(data)

        def apply() -> float | None:
            shelf, name = self.shelf, self._lead + path
            if name in shelf.blobs:
                raise ObjectExists(path)
            shelf.put(self.actor, "put_if_absent", name, body)
            return shelf.blobs[name].meta.last_modified if self._w.dated else None

        if path.endswith(".arrow") and "/wal/" in path:
            for watch in self._w.before_entry:
                watch(self.actor)
        return self._write("put_if_absent", check(path), apply)

    def put(self, path: str, data: Bytes) -> None:
        """See `Store`."""
        body = bytes(data)

        def apply() -> None:
            self.shelf.put(self.actor, "put", self._lead + path, body)

        self._write("put", check(path), apply)

    def put_parts(self, path: str, parts: Parts) -> None:
        """See `Store`."""
        self.put(path, b"".join(parts()))

    def delete(self, paths: Sequence[str]) -> None:
        """See `Store`; the objects go one after the other."""
        for path in paths:

            def apply(name: str = self._lead + check(path)) -> None:
                shelf = self.shelf
                if name in shelf.blobs:
                    for watch in self._w.before_delete:
                        watch(self.actor, f"{shelf.uri}/{name}")
                    del shelf.blobs[name]

            self._write("delete", path, apply)

    # -- reads -----------------------------------------------------------------------------------

    def get(self, path: str) -> Blob:
        """See `Store`."""
        blob = self._get("get", path)
        return Blob(self._w.hand(self.actor, path, blob.data), blob.meta)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See `Store`."""
        data = self._get("get", path).data
        return self._w.hand(self.actor, path, data[start : start + max(length, 0)])

    def get_many(self, paths: Sequence[str], *, first: int | None = None) -> list[bytes | None]:
        """See `Store`; the objects are read at different moments."""
        found = self._many("get_many", paths)
        return [
            None if blob is None else self._w.hand(self.actor, path, blob.data[:first])
            for path, blob in zip(paths, found, strict=True)
        ]

    def head(self, path: str) -> Meta | None:
        """See `Store`."""
        self._read("head", path)
        blob = self._blob(path)
        return None if blob is None else blob.meta

    def head_many(self, paths: Sequence[str]) -> list[Meta | None]:
        """See `Store`; the objects are checked at different moments."""
        return [None if b is None else b.meta for b in self._many("head_many", paths)]

    def list(self, prefix: str) -> Iterator[Meta]:
        """See `Store`; in pages, between which objects change."""
        folder = (self._lead + check_folder(prefix)).rstrip("/")
        self._read("list", prefix)
        found = []
        names = self.shelf.names(folder)
        if self._w.paging and len(names) > 1 and self._w.rng.random() < self._w.paging:
            self._w.fired["pages"] += 1
            last = names[self._w.rng.randrange(len(names) - 1)]
            found = [self.shelf.blobs[name].meta for name in names if name <= last]
            self._s.point()
            names = [name for name in self.shelf.names(folder) if name > last]
        found += [self.shelf.blobs[name].meta for name in names]
        return iter([self._own(meta) for meta in found])

    def list_folder(self, prefix: str) -> Folder:
        """See `Store`."""
        folder = check_folder(prefix)
        skip = len(folder) + 1 if folder else 0
        folders: dict[str, None] = {}
        objects = []
        for meta in self.list(prefix):
            name, slash, _ = meta.path[skip:].partition("/")
            if slash:
                folders[name] = None
            else:
                objects.append(meta)
        return [*folders], objects

    def now(self) -> float:
        """See `Store`: virtual, the same for all clients of this store."""
        return self.shelf.now

    # -- inside ----------------------------------------------------------------------------------

    def _enter(self, op: str, on_death: Callable[[], None] | None = None) -> None:
        """Start of every call: count it, let other tasks run, and refuse a dead process."""
        actor = self.actor
        if actor.dead:
            raise Killed(actor.name)
        task = self._s.current
        if task is not None and task.actor is not actor:
            raise Violation("S", f"{task.name} uses the client of {actor.name}, which forked it")
        self._w.calls[op] += 1
        if self._s.current is not None:
            try:
                self._s.point()
            except Killed:
                if on_death is not None:
                    on_death()
                raise
        self._w.deliver()
        self._check_date()

    def _check_date(self) -> None:
        limit = self._w.skew_max
        if limit is not None and abs(self.actor.env.clock.wall() - self.shelf.now) > limit:
            self._w.fired["skewed"] += 1
            raise StoreDenied(f"{self.uri}: the date of the request is too far off")

    def _get(self, op: str, path: str) -> Blob:
        self._read(op, path)
        blob = self._blob(path)
        if blob is None:
            raise ObjectMissing(path)
        return blob

    def _many(self, op: str, paths: Sequence[str]) -> Sequence[Blob | None]:
        self._read(op, paths[0] if paths else "")
        found = []
        split = self._w.rng.randrange(len(paths)) if self._w.paging and len(paths) > 1 else 0
        for index, path in enumerate(paths):
            if index and index == split:
                self._s.point()
                self._look()
            found.append(self._blob(path))
        return found

    def _read(self, op: str, path: str) -> None:
        self._enter(op)
        w = self._w
        self._look()
        self._struck(op, path, "on reading")
        if w.healthy:
            return
        self._check_outage(path)
        if w.faults.read_error and w.rng.random() < w.faults.read_error:
            w.fired["read_error"] += 1
            self._s.note(self.actor.name, f"{op} {short(path)}: read error")
            raise StoreError(f"{self.uri}/{path}: the simulated store failed to read")
        if w.faults.slow and w.rng.random() < w.faults.slow / 4:
            self._slow()

    def _look(self) -> None:
        if self._w.blinks:
            self._w.look(self.actor, self._disk)

    def _write(self, op: str, path: str, apply: Callable[[], T]) -> T:
        self._enter(op, lambda: self._orphan(op, path, apply))
        dies = self._dies(op, path, apply)
        struck = self._struck(op, path, "before", "after", "under way")
        if struck == "under way":
            self._later(op, path, apply)
        if struck in {"before", "under way"}:
            self._interrupt(op, path, struck)
        outcome = self._draw(path)
        if outcome == "slow":
            self._slow()
        if outcome == "refuse":
            self._say(op, path, "refused")
            raise StoreError(f"{self.uri}/{path}: the simulated store is busy")
        if outcome in {"lose", "late"}:
            if outcome == "late":
                self._later(op, path, apply)
            self._say(op, path, "no answer" + (", under way" if outcome == "late" else ""))
            raise LostAnswer(f"{self.uri}/{path}: the simulated store did not answer")
        assert not self.actor.dead, "a dead process wrote"
        try:
            result = apply()
        except ObjectExists as error:
            self._say(op, path, type(error).__name__)
            self._after()
            raise
        self._say(op, path, "ok" if outcome in {"ok", "slow"} else outcome)
        if dies:
            self._die()
        if struck == "after":
            self._interrupt(op, path, struck)
        if outcome in {"twice", "echo"}:
            try:
                apply()
            except ObjectExists:
                if outcome == "echo":
                    raise
        self._after()
        if outcome == "lose_after":
            raise LostAnswer(f"{self.uri}/{path}: the simulated store's answer was lost")
        return result

    def _struck(self, op: str, path: str, *when: str) -> str | None:
        """How an interrupt hits this call, if one does."""
        strikes = self._w.strikes
        # Most calls are reads, mostly of an open; interrupts of the few writes matter more.
        if strikes is None or not strikes.hits(0.1 if len(when) == 1 else 1.0):
            return None
        chosen = strikes.rng.choice(when)
        if len(when) == 1:
            self._interrupt(op, path, chosen)
        return chosen

    def _interrupt(self, op: str, path: str, when: str) -> None:
        assert self._w.strikes is not None, "drawn first"
        self._w.fired[f"interrupt {when}"] += 1
        self._say(op, path, f"interrupted {when}")
        self._w.strikes.strike()

    def _dies(self, op: str, path: str, apply: Callable[[], Any]) -> bool:
        """Count a crash point; True when the process dies right after this write."""
        w, name = self._w, self.actor.name
        w.writes[name] += 1
        number, when = w.crash_at.get(name, (0, ""))
        if number != w.writes[name]:
            return False
        if when == "before":
            self._say(op, path, "dies before")
            self._die()
        return True

    def _die(self) -> None:
        self._s.kill(self.actor)
        raise Killed(self.actor.name)

    def _after(self) -> None:
        if self._s.current is not None:
            self._s.point()

    def _draw(self, path: str) -> str:
        w = self._w
        if w.healthy:
            return "ok"
        self._check_outage(path)
        # The connection of the entry that was about to be sent, not that of another thread.
        if self.actor.is_torn and "/wal/" in path:
            self.actor.is_torn = False
            if not w.dated:
                w.fired["torn"] += 1
                return "lose"
        f = w.faults
        roll = w.rng.random()
        for kind in ("refuse", "lose_after", "lose", "late", "twice", "echo", "slow"):
            roll -= getattr(f, kind)
            if roll < 0:
                w.fired[kind] += 1
                return kind
        if f.outage and w.rng.random() < f.outage:
            w.fired["outage"] += 1
            w.outages[self.actor.name] = self._s.step + w.rng.choice((10, 60, 300))
        return "ok"

    def _check_outage(self, path: str) -> None:
        w = self._w
        if w.outages and self._s.step < w.outages.get(self.actor.name, 0):
            # Takes time, so that retries outlast the outage.
            self._s.block("outage", 1.0)
            raise StoreError(f"{self.uri}/{path}: the simulated store is out of reach")

    def _slow(self) -> None:
        self._s.block("slow store", self._w.rng.choice((0.5, 5.0, 30.0, 3600.0)))

    def _later(self, op: str, path: str, apply: Callable[[], Any]) -> None:
        delay = self._w.rng.choice((1, 3, 10, 30, 100, 400, 1 << 40))
        self._w.late.append(Late(self._s.step + delay, self.actor, op, path, apply))

    def _orphan(self, op: str, path: str, apply: Callable[[], Any]) -> None:
        """The sender died while its request was on the wire."""
        w = self._w
        if not w.healthy and w.rng.random() < w.faults.orphan:
            w.fired["orphan"] += 1
            self._later(op, path, apply)

    def _say(self, op: str, path: str, outcome: str) -> None:
        self._s.note(self.actor.name, f"{op} {short(path)}: {outcome}")
