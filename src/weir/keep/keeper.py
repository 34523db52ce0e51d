"""The keeper: looks at every table below its prefixes, and does what is due.

It has no machinery for several keepers: every job claims for itself, so a second keeper, or one
that was frozen and wakes up, finds the claim of the other and goes on with the next table. What one
table costs is no matter of another: failures back off for that table alone, a damaged table is
reported once and left alone, and a writer that may live is not fenced unless the policy says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

from weir import making
from weir.durations import seconds
from weir.env import SYSTEM, Bell, Env, Thread
from weir.errors import NotAWeirTable, WeirError
from weir.keep.discover import Skipped, StorageOf, is_behind_link, tables_below
from weir.keep.measures import watch
from weir.keep.policy import KeeperPolicy
from weir.keep.status import JobStatus, statuses
from weir.meters import KEEP_JOBS
from weir.pace import Pace
from weir.records.keeping import KeepRecords, shortened
from weir.store.open import normalize
from weir.table import Table
from weir.upkeep.due import KeepPolicy, Upkeep, look
from weir.upkeep.gc.report import GcReport
from weir.upkeep.perform import Fold, JobReport, perform

logger = logging.getLogger("weir.keep")

Tell = Callable[[JobReport], None]
BEAT: Final = 5.0
"""Seconds between two turns of the main thread, which health is judged by."""
LONGEST_PAUSE: Final = 3600.0
"""The longest pause after looks at a table that failed."""


@dataclass(eq=False)
class KeptTable:
    """One table, as this keeper knows it."""

    uri: str
    table: Table | None = None
    next_look: float = 0.0
    """By this machine's clock."""
    failures: int = 0
    """Looks that failed in a row."""
    is_busy: bool = False
    found: Upkeep | None = None
    """What the last look found."""
    jobs: tuple[JobStatus, ...] = ()
    """The status of each job after the last look."""
    collected: GcReport | None = None
    """What the last collection left."""
    told: frozenset[str] = frozenset()
    """What was said about it and still holds."""

    def leave(self) -> None:
        """The policy says to leave it alone: nothing of it is shown."""
        self.found, self.jobs, self.collected = None, (), None

    def is_news(self, words: Collection[str], more: str) -> bool:
        """True when `more` was not said before; `words` is all that holds now."""
        is_new = more not in self.told
        self.told = (self.told & frozenset(words)) | {more}
        return is_new


class Keeper:
    """Keeps the tables below `roots`. `tell` is called from several threads."""

    def __init__(
        self,
        roots: Sequence[str],
        policy: KeeperPolicy,
        *,
        storage: StorageOf = lambda _uri: {},
        tell: Tell = lambda _report: None,
        reload: Callable[[], KeeperPolicy] | None = None,
        fold: Callable[[str, Upkeep], Fold | None] = lambda _uri, _found: None,
        dry_run: bool = False,
        env: Env = SYSTEM,
    ) -> None:
        """`reload` reads the policy again; `fold` says what compacts a table, None: this process;
        with `dry_run` due jobs are named and not done."""
        self.roots = tuple(roots)
        self.policy = policy
        self.tables: dict[str, KeptTable] = {}
        self.is_ready = False
        """True once every prefix was searched."""
        self.turned = env.clock.boottime()
        """When the main thread last turned."""
        self._storage = storage
        self._tell = tell
        self._reload = reload
        self._fold = fold
        self._dry_run = dry_run
        self._env = env
        self._pace = Pace(env.clock, env.threads, env.meters)
        self._limit()
        self._bell = Bell(env.threads)
        self._lock = env.threads.lock()
        self._bells: list[Bell] = []
        """One for each worker."""
        self._workers: list[Thread] = []
        self._is_stopping = False
        self._wants_reload = False
        self._next_find = 0.0
        self._skipped: dict[str, tuple[Skipped, ...]] = {}
        """What the last search below each prefix passed over."""
        self._broken: BaseException | None = None
        """What ended a worker."""
        watch(lambda: self.all_tables, lambda: self.statuses, env)

    # -- called from anywhere, also from a signal handler ----------------------------------------

    def stop(self) -> None:
        """Begin no other job, and end when those under way are done, which no limit slows down."""
        self._is_stopping = True
        self._pace.lift()
        self._bell.ring()

    def reload(self) -> None:
        """Read the policy again, search the prefixes again, and look at every table soon."""
        self._wants_reload = True
        self._bell.ring()

    @property
    def is_alive(self) -> bool:
        """True while the main thread turns."""
        return self._env.clock.boottime() - self.turned < 12 * BEAT

    # -- one round -------------------------------------------------------------------------------

    def once(self) -> list[JobReport]:
        """Look at every table once, in random order, and do what is due; returns all outcomes."""
        reports = self.find()
        kept = self.all_tables
        self._env.random.shuffle(kept)
        done = self._env.threads.map(self.look_after, kept, workers=self.policy.jobs)
        return [*reports, *(report for each in done for report in each)]

    def find(self) -> list[JobReport]:
        """Search the prefixes for tables; returns what could not be searched: each prefix, and each
        folder that a search before did not report."""
        failed: list[Skipped] = []
        news: list[Skipped] = []
        for root in self.roots:
            try:
                found = tables_below(root, self._storage, self._env)
            except WeirError as error:
                failed.append(Skipped.because(root, error))
                self._skipped = {**self._skipped, root: tuple(failed[-1:])}
                continue
            there = set(found.tables)
            with self._lock:
                for uri in found.tables:
                    self.tables.setdefault(uri, KeptTable(uri))
                lost = [u for u in self.tables if _is_below(u, root) and u not in there]
                for uri in lost:
                    if not any(_is_below(uri, each.uri) for each in found.failed):
                        del self.tables[uri]
            news += self._passed_over(root, found.skipped)
        unsearched = (*failed, *news)
        reports = [JobReport(each.uri, "find", each.result, each.said) for each in unsearched]
        for report in reports:
            logger.warning("keep.find.failed root=%s reason=%s", report.uri, report.said)
            self._env.meters.add(KEEP_JOBS, 1, report.job, report.result)
            self._tell(report)
        self.is_ready = self.is_ready or not failed
        return reports

    def _passed_over(self, root: str, skipped: Sequence[Skipped]) -> list[Skipped]:
        """The folders that were not searched, and not said to be so before."""
        known = {each.uri for found in self._skipped.values() for each in found}
        news = [each for each in skipped if each.uri not in known]
        self._skipped = {**self._skipped, root: tuple(skipped)}
        for each in news:
            if each.is_link:
                logger.info("keep.find.link folder=%s", each.uri)
        return [each for each in news if not each.is_link]

    @property
    def statuses(self) -> list[JobStatus]:
        """The status of every job after the last look at its table, and of every search that
        failed."""
        unsearched = {each.uri: each for found in self._skipped.values() for each in found}
        searches = [
            JobStatus(each.uri, "find", each.result, each.said)
            for each in unsearched.values()
            if not each.is_link
        ]
        return [*searches, *(job for kept in self.all_tables for job in kept.jobs)]

    @property
    def all_tables(self) -> list[KeptTable]:
        """The tables that are known now."""
        with self._lock:
            return list(self.tables.values())

    def look_after(self, kept: KeptTable) -> list[JobReport]:
        """Look at one table and do what is due."""
        reports: list[JobReport] = []
        try:
            policy = self.policy.of(kept.uri)
            if policy is None:
                kept.leave()
                return []
            reports = self._do_due(kept, policy)
            kept.failures = 0
        except NotAWeirTable:
            self._forget(kept)
        except WeirError as error:
            is_damage = error.kind == "data"
            reports = self._look_failed(kept, "damaged" if is_damage else "failed", str(error))
        except Exception as error:
            # Of a library below, or a bug: no reason to stop the upkeep of other tables.
            logger.exception("keep.look.broke table=%s", kept.uri)
            said = f"unexpected {type(error).__name__}: {error}"
            reports = self._look_failed(kept, "failed", said)
        for report in reports:
            self._tell(report)
        return reports

    def _do_due(self, kept: KeptTable, policy: KeepPolicy) -> list[JobReport]:
        table = kept.table
        # Since the search somebody may have put a link to another table in its place (G-13).
        homes = [normalize(root) for root in self.roots if _is_below(kept.uri, root)]
        if homes and all(is_behind_link(kept.uri, home) for home in homes):
            raise NotAWeirTable(f"{kept.uri} is, or is below, a symbolic link")
        if table is None:
            storage = dict(self._storage(kept.uri))
            env = replace(self._env, pace=self._pace.share())
            table = making.open(kept.uri, storage_options=storage, env=env)
            kept.table = table
        core = table.core
        now = cache(core.store.now)  # read by writing: once for a look, and for what is shown of it
        found = look(core, policy, now)
        reports = self._news(kept, found)
        for job in found:
            if self._dry_run:
                reports.append(JobReport(kept.uri, job.key, "due", job.reason))
            elif job.not_before is None and not self._is_stopping:
                fold = self._fold(kept.uri, found)
                report = perform(core, job, policy, core.store.now, fold)
                reports.append(report)
                if isinstance(report.report, GcReport):
                    kept.collected = report.report
                if report.result == "damaged":
                    kept.is_news([shortened(report.said)], shortened(report.said))
                    break
        kept.found = found
        known = KeepRecords(core.store, core.env).latest()
        done = {report.job for report in reports if report.result == "succeeded"}
        still = replace(found, jobs=tuple(job for job in found if job.key not in done))
        kept.jobs = statuses(still, known, policy, now())
        return reports

    def _news(self, kept: KeptTable, found: Upkeep) -> list[JobReport]:
        """What is to be said about a table that is left alone; once, not at every look."""
        if found.damaged is not None:
            is_new = kept.is_news([found.damaged], found.damaged)
            return [JobReport(kept.uri, "all", "damaged", found.damaged)] if is_new else []
        words = {sentence.partition(" has left")[0]: sentence for sentence in found.left}
        kept.told &= frozenset(words)
        return [
            JobReport(kept.uri, "flush", "left", sentence)
            for word, sentence in words.items()
            if kept.is_news(words, word)
        ]

    def _look_failed(
        self, kept: KeptTable, result: Literal["failed", "damaged"], said: str
    ) -> list[JobReport]:
        """What is to be said of a look that ended so; of damage once, not at every look."""
        self._env.meters.add(KEEP_JOBS, 1, "look", result)
        kept.jobs = (JobStatus(kept.uri, "look", result, said),)
        report = JobReport(kept.uri, "look", result, said)
        if result == "damaged" and kept.table is not None and not self._dry_run:
            core = kept.table.core
            try:
                core.record_number()  # C-16: nothing for a table that was dropped
                KeepRecords(core.store, core.env).damaged(said)
            except NotAWeirTable:
                self._forget(kept)
                return []
            except WeirError as error:
                logger.warning("keep.unrecorded table=%s job=look reason=%s", core.uri, error)
        else:
            kept.failures += 1  # look again, but not every minute
            kept.table = None
        if result == "damaged" and not kept.is_news([shortened(said)], shortened(said)):
            return []
        return [report]

    def _forget(self, kept: KeptTable) -> None:
        with self._lock:
            self.tables.pop(kept.uri, None)

    # -- for ever --------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the tables until `stop` is called; returns when the jobs under way are done."""
        try:
            while not self._is_stopping:
                self._turn()
                self._bell.wait(BEAT)
        finally:
            self._is_stopping = True
            self._wake_workers()
            for worker in self._workers:
                worker.join()
        if self._broken is not None:
            raise self._broken  # the keeper would turn, and nobody would work

    def _turn(self) -> None:
        clock = self._env.clock
        if self._wants_reload:
            self._wants_reload = False
            self._load()
        if clock.boottime() >= self._next_find:
            self.find()
            self._next_find = clock.boottime() + seconds(self.policy.find)
        self.turned = clock.boottime()
        while len(self._workers) < self.policy.jobs:
            number = len(self._workers)
            if number == len(self._bells):
                self._bells.append(Bell(self._env.threads))
            run = self._work_as(number)
            worker = self._env.threads.start(run, name=f"weir-keep-{number}")
            if worker is None:
                run()  # no thread can be had: one table after the other
                return
            self._workers.append(worker)
        self._wake_workers()

    def _wake_workers(self) -> None:
        for bell in self._bells:
            bell.ring()

    def _load(self) -> None:
        try:
            self.policy = self.policy if self._reload is None else self._reload()
        except WeirError as error:
            self._tell(JobReport(", ".join(self.roots), "reload", "failed", str(error)))
            return
        self._limit()
        with self._lock:
            self._next_find = 0.0
            for kept in self.tables.values():
                kept.next_look, kept.failures = 0.0, 0

    def _limit(self) -> None:
        self._pace.limit(self.policy.requests_per_second, self.policy.bytes_per_second)

    def _work_as(self, number: int) -> Callable[[], None]:
        def work() -> None:
            try:
                while (kept := self._take(number)) is not None:
                    try:
                        self.look_after(kept)
                    finally:
                        self._give_back(kept)
            except BaseException as error:  # noqa: BLE001  raised by `run`
                self._broken = error
                self.stop()

        return work

    def _take(self, number: int) -> KeptTable | None:
        """Wait for a table that is to be looked at; None when the worker should end."""
        while not self._is_stopping:
            with self._lock:
                now = self._env.clock.boottime()
                idle = [kept for kept in self.tables.values() if not kept.is_busy]
                first = min((kept.next_look for kept in idle), default=now + BEAT)
                if first <= now and number < self.policy.jobs:
                    # What waits longest, so that none waits for more than a round of all others.
                    # Keepers differ: all begin in random order, and every pause is a random one.
                    kept = self._env.random.choice([k for k in idle if k.next_look == first])
                    kept.is_busy = True
                    return kept
                following = first - now
            self._bells[number].wait(min(BEAT, max(0.01, following)))
        return None

    def _give_back(self, kept: KeptTable) -> None:
        pause = seconds(self.policy.every) * 2 ** min(kept.failures, 16)
        pause = min(pause, max(LONGEST_PAUSE, seconds(self.policy.every)))
        with self._lock:
            kept.is_busy = False
            now = self._env.clock.boottime()
            kept.next_look = now + pause * self._env.random.uniform(0.75, 1.25)
        self._wake_workers()


def _is_below(uri: str, root: str) -> bool:
    base = normalize(root).rstrip("/")
    return uri == base or uri.startswith(base + "/")
