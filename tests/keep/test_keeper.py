"""The keeper: finds tables, does what is due, and no table's trouble is another's."""

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import weir
from tests.support.moments import make, put, rows
from tests.support.threads import Caller
from weir.cli.keep import pages
from weir.env import Env
from weir.errors import InvalidInput, MissingEntry, StoreError
from weir.format import paths
from weir.keep.discover import Found, tables_below, tables_in
from weir.keep.keeper import Keeper, KeptTable
from weir.keep.policy import KeeperPolicy, Rule
from weir.keep.server import Page, parse_address, serving
from weir.keep.status import JobStatus, statuses
from weir.meters import (
    DEBT_GENERATIONS,
    DUE_SECONDS,
    HELD_OBJECTS,
    KEEP_DAMAGED,
    KEEP_FAILING,
    METRICS,
)
from weir.records.keeping import KeepRecords
from weir.store.open import open_store
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.due import look
from weir.upkeep.perform import JobReport

SOON = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=1), gc=None)


def keeper(root: Path, policy: weir.KeepPolicy = SOON, **options: Any) -> Keeper:
    told = options.pop("told", [])
    rules = options.pop("tables", ())
    made = KeeperPolicy(every=0.01, jobs=2, defaults=policy, tables=rules)
    return Keeper([str(root)], made, tell=told.append, env=Env(), **options)


def filled(place: Path) -> weir.Table:
    table = make(place, shards=1)
    with table.writer() as writer:
        put(writer, [1], "a")
    return table


def status_of(table: weir.Table, policy: weir.KeepPolicy) -> tuple[JobStatus, ...]:
    core = table.core
    now = core.store.now()
    known = KeepRecords(core.store, core.env).latest()
    return statuses(look(core, policy, lambda: now), known, policy, now)


def results(reports: list[JobReport]) -> set[tuple[str, str, str]]:
    return {(report.uri.rpartition("/")[2], report.job, report.result) for report in reports}


def test_tables_are_found_at_any_depth_and_nothing_else(tmp_path: Path) -> None:
    here = [make(tmp_path / name).uri for name in ("a", "b/c", "b/d/e")]
    make(tmp_path / "gone")
    weir.drop(tmp_path / "gone")
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "plain"))
    (tmp_path / "_hidden" / "x").mkdir(parents=True)
    assert tables_below(str(tmp_path), lambda _: {}).tables == here
    assert tables_in(str(tmp_path), lambda _: {}).tables == here[:1]
    assert tables_below(here[1], lambda _: {}).tables == [here[1]], "a table itself"


def test_no_link_leads_a_search_or_a_look_elsewhere(tmp_path: Path) -> None:
    other = filled(tmp_path / "private" / "b")
    mine = filled(tmp_path / "lake" / "a")
    (tmp_path / "lake" / "x").mkdir()
    (tmp_path / "lake" / "x" / "y").symlink_to(tmp_path / "private")
    kept = keeper(tmp_path / "lake")
    assert [report.uri for report in kept.once()] == [mine.uri]
    Path(mine.uri).rename(tmp_path / "was")
    Path(mine.uri).symlink_to(other.uri)
    found = next(iter(kept.tables.values()))
    assert kept.look_after(found) == [], "a link in place of a table that was found before"
    assert weir.open(other.uri).stats().base_rows == 0
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "private")
    chosen = keeper(tmp_path / "lake" / "link").once()
    assert len(chosen) == 1, "the caller may choose a link"


@pytest.mark.parametrize(("age", "result"), [(40, "waits"), (70, "succeeded")])
def test_l4_a_keeper_that_was_killed_in_a_fold_leaves_the_table_alone_for_a_minute(
    tmp_path: Path, age: float, result: str
) -> None:
    """It was a quarter of an hour, in which a busy table gathered hundreds of SSTables."""
    table = filled(tmp_path / "t")
    Jobs(table.core.store).claim("killed", None)
    (record,) = Path(table.uri, paths.compaction_chain()).iterdir()
    then = record.stat().st_mtime - age
    os.utime(record, (then, then))
    assert results(keeper(tmp_path).once()) == {("t", "compact", result)}


@pytest.mark.parametrize("place", ["memory://roots/lkae", "folder"])
def test_a_mistyped_root_is_a_failure_and_an_empty_one_is_none(tmp_path: Path, place: str) -> None:
    open_store("memory://roots/lake").put("note.txt", b"")
    (tmp_path / "empty").mkdir()
    wrong = place if "://" in place else str(tmp_path / place)
    right = "memory://roots/lake" if "://" in place else str(tmp_path / "empty")
    made = Keeper([wrong, right, "memory://nothing-yet"], KeeperPolicy(), env=Env())
    (report,) = made.once()
    assert (report.uri, report.job, report.result) == (wrong, "find", "failed")
    assert f"there is no {wrong}" in report.said
    assert "spelled" in report.said
    assert not made.is_ready


def test_of_tables_that_are_due_the_one_that_waits_longest_is_next(tmp_path: Path) -> None:
    """In random order a table of fifty waited for four rounds of all others, now and then."""
    kept = keeper(tmp_path)
    for n in range(20):
        kept.tables[f"t{n}"] = KeptTable(f"t{n}", next_look=-float(n // 2))
    order = [found.uri for found in (kept._take(0) for _ in range(20)) if found is not None]
    assert [int(uri[1:]) // 2 for uri in order] == [n // 2 for n in reversed(range(20))]


def test_a_name_that_no_table_can_have_is_passed_over() -> None:
    """On an object store anyone may give an object a name that is not a URI."""
    open_store("memory://names/lake").put_if_absent("a?b=c/x", b"")
    assert tables_below("memory://names/lake", lambda _: {}) == Found([], [])


def test_a_folder_that_cannot_be_searched_is_reported_once_and_hides_no_other(
    tmp_path: Path,
) -> None:
    filled(tmp_path / "good")
    bad = tmp_path / "bad"
    (bad / "_weir" / "table").mkdir(parents=True)
    record = bad / "_weir" / "table" / f"{1:020}.json"
    record.write_text("{garbage")
    kept = keeper(tmp_path)
    first = kept.once()
    assert results(first) == {("bad", "find", "damaged"), ("good", "compact", "succeeded")}
    assert kept.is_ready
    assert kept.once() == [], "said once"
    record.unlink()
    assert kept.once() == []
    record.write_text("{garbage")
    assert results(kept.once()) == {("bad", "find", "damaged")}, "it is news again"


def test_a_table_whose_folder_cannot_be_searched_for_now_is_not_forgotten(tmp_path: Path) -> None:
    table = filled(tmp_path / "a" / "b")
    kept = keeper(tmp_path)
    kept.find()
    record = max((tmp_path / "a" / "b" / "_weir" / "table").iterdir())
    record.write_bytes(b"?")
    assert results(kept.find()) == {("b", "find", "damaged")}
    assert list(kept.tables) == [table.uri]


def test_a_table_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    filled(tmp_path / "b")
    kept = keeper(tmp_path)
    kept.find()
    max((tmp_path / "b" / "_weir" / "table").iterdir()).write_bytes(b"?")
    assert results(kept.once()) == {("b", "find", "damaged"), ("b", "look", "damaged")}
    assert kept.once() == []
    meters = kept._env.meters
    assert meters.gauge(KEEP_DAMAGED) == {(): 1}, "two sentences about one table"


def test_s1_a_prefix_that_is_gone_is_reported_and_its_tables_are_not_forgotten(
    tmp_path: Path,
) -> None:
    table = filled(tmp_path / "lake" / "a")
    kept = keeper(tmp_path / "lake")
    kept.find()
    (tmp_path / "lake").rename(tmp_path / "unmounted")
    (report,) = kept.find()
    assert (report.uri, report.result) == (str(tmp_path / "lake"), "failed")
    assert "is not mounted" in report.said
    assert list(kept.tables) == [table.uri]
    (tmp_path / "unmounted").rename(tmp_path / "lake")
    assert results(kept.once()) == {("a", "compact", "succeeded")}


def test_c16_a_look_that_a_drop_overtook_leaves_no_damage_for_the_next_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "a")

    def overtaken(*_: object) -> Any:
        weir.drop(table.uri)
        raise MissingEntry("the log lacks position 1")

    monkeypatch.setattr("weir.keep.keeper.look", overtaken)
    assert keeper(tmp_path).once() == []
    monkeypatch.undo()
    filled(tmp_path / "a")
    assert results(keeper(tmp_path).once()) == {("a", "compact", "succeeded")}


def test_searches_and_looks_that_fail_are_measured_and_shown(tmp_path: Path) -> None:
    filled(tmp_path / "good")
    (tmp_path / "bad" / "_weir" / "table").mkdir(parents=True)
    (tmp_path / "bad" / "_weir" / "table" / f"{1:020}.json").write_text("{garbage")
    kept = keeper(tmp_path)
    kept.roots = (*kept.roots, str(tmp_path / "none"))
    env = kept._env
    env.meters.turn_on()
    kept.once()
    assert env.meters.gauge(KEEP_DAMAGED) == {(): 1}
    assert env.meters.gauge(KEEP_FAILING) == {("find",): 1}
    assert {(job.uri, job.status) for job in kept.statuses if job.job == "find"} == {
        (str(tmp_path / "bad"), "damaged"),
        (str(tmp_path / "none"), "failed"),
    }
    page = env.meters.page()
    assert 'weir_keep_jobs_total{kind="find",result="damaged"} 1' in page
    assert 'weir_keep_jobs_total{kind="find",result="failed"} 1' in page


def test_one_round_does_what_is_due_everywhere(tmp_path: Path) -> None:
    for name in ("a", "b"):
        filled(tmp_path / name)
    told: list[JobReport] = []
    kept = keeper(tmp_path, told=told)
    done = kept.once()
    assert results(done) == {("a", "compact", "succeeded"), ("b", "compact", "succeeded")}
    assert results(told) == results(done)
    assert weir.open(tmp_path / "a").stats().base_rows == 1
    assert kept.once() == []


def test_a_look_with_nothing_to_do_reads_the_clock_of_the_store_once(tmp_path: Path) -> None:
    """It is read by writing, and a keeper looks at a thousand tables every minute."""
    filled(tmp_path / "a")
    kept = keeper(tmp_path, weir.KeepPolicy())
    kept.find()
    kept._env.meters.turn_on()
    (known,) = kept.all_tables
    assert kept.look_after(known) == []
    page = kept._env.meters.page()
    assert 'weir_store_request_seconds_count{verb="now"} 1\n' in page
    assert 'verb="put' not in page


def test_a_dry_run_names_what_is_due_and_changes_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path / "a")
    before = sorted(str(p) for p in Path(table.uri).rglob("*"))
    (report,) = keeper(tmp_path, dry_run=True).once()
    assert (report.job, report.result) == ("compact", "due")
    assert "1 generations" in report.said
    assert sorted(str(p) for p in Path(table.uri).rglob("*")) == before


def test_a_table_that_comes_later_is_found_and_one_that_goes_is_forgotten(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    (tmp_path / "later").mkdir()
    kept.once()
    assert kept.is_ready
    assert not kept.tables
    filled(tmp_path / "later" / "t")
    assert results(kept.once()) == {("t", "compact", "succeeded")}
    weir.drop(tmp_path / "later" / "t")
    assert kept.once() == []
    assert not kept.tables


def test_rules_of_the_policy_choose_tables(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        filled(tmp_path / name)
    rules = [Rule("a", skip=True), Rule("*/b", settings={"compact": None})]
    done = keeper(tmp_path, tables=rules).once()
    assert results(done) == {("c", "compact", "succeeded")}


def test_rules_that_are_no_policy_together_are_a_failure_of_their_tables_alone(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        filled(tmp_path / name)
    rules = [
        Rule("*", settings={"fence_retention": "1h"}),  # each is a policy with the defaults
        Rule("a", settings={"min_age": "2h"}),
    ]
    kept = keeper(tmp_path, tables=rules)
    done = kept.once()
    assert results(done) == {("a", "look", "failed"), ("b", "compact", "succeeded")}
    (failed,) = [report for report in done if report.result == "failed"]
    assert "fence_retention must be at least min_age" in failed.said
    assert "rules '*', 'a'" in failed.said
    assert kept._env.meters.gauge(KEEP_FAILING) == {("look",): 1}


def test_a_table_that_the_policy_leaves_alone_from_now_on_is_shown_no_longer(
    tmp_path: Path,
) -> None:
    filled(tmp_path / "a")
    kept = keeper(tmp_path, dry_run=True)
    kept.once()
    meters = kept._env.meters
    assert meters.gauge(DEBT_GENERATIONS) == {(): 1}
    kept.policy = replace(kept.policy, tables=[Rule("a", skip=True)])
    assert kept.once() == []
    assert meters.gauge(DEBT_GENERATIONS) == {(): 0}
    assert kept.statuses == []


def test_a_worker_that_breaks_ends_the_keeper(tmp_path: Path) -> None:
    """Nobody reads what it says any more: better no keeper than one that only seems to work."""
    filled(tmp_path / "a")

    def tell(_report: JobReport) -> None:
        raise BrokenPipeError

    kept = Keeper([str(tmp_path)], KeeperPolicy(every=0.01, defaults=SOON), tell=tell, env=Env())
    runner = Caller(kept.run)
    with pytest.raises(BrokenPipeError):
        runner.result()


def test_a_failing_table_stops_no_other_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        filled(tmp_path / name)
    from weir.upkeep import perform

    real = perform.compact

    def fails(core: Any) -> Any:
        if core.uri.endswith("bad"):
            raise StoreError("no route")
        return real(core)

    monkeypatch.setattr(perform, "compact", fails)
    kept = keeper(tmp_path)
    done = kept.once()
    assert results(done) == {("bad", "compact", "failed"), ("good", "compact", "succeeded")}
    (failed,) = [report for report in done if report.result == "failed"]
    assert failed.next_try is not None
    assert kept.once() == [], "not before its next try"
    (job,) = status_of(weir.open(tmp_path / "bad"), SOON)
    assert (job.status, job.said, job.failures) == ("failed", "no route", 1)
    assert job.next_try == failed.next_try


def test_a_damaged_table_is_reported_once_and_left_alone(tmp_path: Path) -> None:
    table = filled(tmp_path / "torn")
    filled(tmp_path / "whole")
    (shard,) = table.shards()
    name = shard.manifest().sstables[0].path
    for path in (Path(table.uri) / paths.sstable_dir(shard.id, name)).rglob("*.lance"):
        path.unlink()
    kept = keeper(tmp_path)
    assert results(kept.once()) == {
        ("torn", "compact", "damaged"),
        ("whole", "compact", "succeeded"),
    }
    assert kept.once() == []
    assert results(keeper(tmp_path).once()) == {("torn", "all", "damaged")}, "by another keeper too"


def test_a_job_that_meets_an_error_of_another_library_has_failed_and_stops_no_other_job(
    tmp_path: Path,
) -> None:
    filled(tmp_path / "a")

    def on_spark(_core: Any) -> Any:
        raise RuntimeError("the cluster is gone")

    kept = keeper(tmp_path, replace(SOON, gc=0), fold=lambda _uri, _found: on_spark)
    done = kept.once()
    assert results(done) == {("a", "compact", "failed"), ("a", "gc", "succeeded")}
    jobs = {job.job: job for job in status_of(weir.open(tmp_path / "a"), SOON)}
    assert jobs["compact"].status == "failed"
    assert jobs["compact"].said == "unexpected RuntimeError: the cluster is gone"
    assert jobs["compact"].next_try is not None


def test_a_manifest_that_cannot_be_read_is_damage_as_well(tmp_path: Path) -> None:
    table = filled(tmp_path / "torn")
    kept = keeper(tmp_path)
    (shard,) = table.shards()
    for path in (Path(table.uri) / paths.manifest_dir(shard.id)).glob("*.binpb"):
        path.write_bytes(b"\xff" * 100)
    assert results(kept.once()) == {("torn", "look", "damaged")}
    assert kept.once() == []


def test_l6_a_live_writer_is_not_fenced_and_it_is_said(tmp_path: Path) -> None:
    quick = weir.WriterConfig(max_memtable_age="1ms", enable_memtable=True)
    table = make(tmp_path / "t", shards=1, writer_defaults=quick)
    # A writer with settings of its own: it lives, holds rows, and does not flush them by age.
    writer = table.writer(weir.WriterConfig(max_memtable_age=None))
    put(writer, [1], "a")
    kept = keeper(tmp_path)
    reports: list[JobReport] = []
    while not reports:
        reports = kept.once()
    assert results(reports) == {("t", "flush", "left")}
    assert kept.once() == [], "once, not at every look"
    put(writer, [2], "a")  # it was not fenced
    writer.close()
    assert rows(table) == {1: "a", 2: "a"}


def test_two_keepers_at_once_do_each_job_once(tmp_path: Path) -> None:
    for n in range(6):
        filled(tmp_path / f"t{n}")
    callers = [Caller(keeper(tmp_path).once) for _ in range(2)]
    done = [report for caller in callers for report in caller.result(60)]
    assert not [r for r in done if r.result in ("failed", "damaged")]
    for n in range(6):
        table = weir.open(tmp_path / f"t{n}")
        assert rows(table) == {1: "a"}
        assert table.stats().generations == 0


def test_it_runs_until_it_is_stopped_and_reads_its_policy_again(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    told: list[JobReport] = []
    policies = iter([KeeperPolicy(every=0.01, defaults=SOON)])
    idle = weir.KeepPolicy(compact=None, gc=None)

    def load() -> KeeperPolicy:
        try:
            return next(policies)
        except StopIteration:
            raise InvalidInput("keep.toml, line 3: no") from None

    kept = keeper(tmp_path, idle, told=told, reload=load)
    runner = Caller(kept.run)

    def wait(until: Any) -> None:
        for _ in range(1000):
            if until():
                return
            kept._env.clock.sleep(0.01)
        raise AssertionError("it never happened")

    wait(lambda: kept.is_ready)
    assert told == []
    kept.reload()
    wait(lambda: told)
    assert results(told) == {("a", "compact", "succeeded")}
    kept.reload()
    wait(lambda: len(told) > 1)
    assert (told[1].job, told[1].result, told[1].said) == (
        "reload", "failed", "keep.toml, line 3: no",
    )  # fmt: skip
    assert kept.is_alive
    kept.stop()
    runner.result()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[Keeper, str]]:
    kept = keeper(tmp_path)
    with serving(("127.0.0.1", 0), pages(kept)) as (host, port):
        yield kept, f"http://{host}:{port}"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_says_whether_it_is_alive_and_ready(address: tuple[Keeper, str]) -> None:
    kept, url = address
    assert get(f"{url}/healthz") == (200, "ok\n")
    assert get(f"{url}/readyz")[0] == 503
    kept.find()
    assert get(f"{url}/readyz") == (200, "ok\n")
    assert get(f"{url}/nothing")[0] == 404
    kept.turned -= 3600
    assert get(f"{url}/healthz")[0] == 503


def test_its_metrics_are_scraped_as_prometheus_reads_them(address: tuple[Keeper, str]) -> None:
    with urllib.request.urlopen(f"{address[1]}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        page = answer.read().decode()
    found = {family.name: family.type for family in text_string_to_metric_families(page)}
    assert found == {metric.name.removesuffix("_total"): metric.kind for metric in METRICS}


def test_the_gauges_say_what_holds_garbage_and_for_how_long_jobs_are_due(tmp_path: Path) -> None:
    table = filled(tmp_path / "a")
    table.compact()
    table.checkpoint(name="held")
    filled(tmp_path / "a2")
    policy = weir.KeepPolicy(compact=SOON.compact, gc=0, min_age=0, fence_retention="7d")
    kept = keeper(tmp_path, policy)
    meters = kept._env.meters
    assert sum(meters.gauge(HELD_OBJECTS).values()) == 0
    kept.once()
    held = meters.gauge(HELD_OBJECTS)
    assert held["first entry of an epoch",] >= 2  # one of each table
    assert held["checkpoint",] >= 1
    assert held["vetoed",] == 0
    assert meters.gauge(DUE_SECONDS) == {}  # all was done
    waiting = keeper(tmp_path, policy, dry_run=True)
    waiting.once()
    assert set(waiting._env.meters.gauge(DUE_SECONDS)) == {("gc",)}


@pytest.mark.parametrize("text", ["9464", "host:", ":99999", "a:b", ":\u00b2"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        parse_address(text)


def test_an_address_of_ipv6_is_listened_on() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(parse_address("[::1]:0"), {"/": lambda: Page(200, "ok")}) as (host, port):
        assert get(f"http://[{host}]:{port}/") == (200, "ok")


def test_a_taken_address_is_refused_with_what_to_do() -> None:
    with serving(("127.0.0.1", 0), {"/": lambda: Page(200, "")}) as taken:
        second = serving(taken, {})
        with pytest.raises(InvalidInput, match="choose another address"):
            second.__enter__()


def test_silence_is_a_job_that_is_due_for_too_long(tmp_path: Path) -> None:
    from tests.support.moments import at_time

    table = filled(tmp_path / "a")
    now = [table.core.store.now()]
    policy = weir.KeepPolicy(gc="1h", compact=None, silent_after="6h")
    later = at_time(table, now)
    assert status_of(later, policy) == ()
    now[0] += 3700
    assert [job.status for job in status_of(later, policy)] == ["due"]
    now[0] += 6 * 3600
    assert [job.status for job in status_of(later, policy)] == ["silent"]
