"""Producers append events, a consumer counts them, and `weir keep` looks after the tables. One
producer is killed, one is frozen, the consumer is killed; in the end every event counts once.

    python run.py     # in an empty folder
"""

import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pydantic

import weir

HERE = Path(__file__).parent
EVENTS = 20
"""Events of a producer between two things that happen."""


class Page(pydantic.BaseModel):
    """A row of `lake/pages`."""

    page: str
    visits: int


class Program:
    """A process that prints a number for each thing done."""

    def __init__(self, script: str, *words: str) -> None:
        command = [sys.executable, str(HERE / script), *words]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.printed: list[int] = []

    def wait_for(self, lines: int) -> None:
        assert self.running.stdout is not None
        for _ in range(lines):
            self.printed.append(int(self.running.stdout.readline()))

    def end(self, how: signal.Signals) -> None:
        self.running.send_signal(how)
        assert self.running.stdout is not None
        rest = self.running.stdout.read()
        self.running.wait()
        whole = rest[: rest.rfind("\n") + 1]  # not the half of a line of a killed process
        self.printed += map(int, whole.split())


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 200
    while not is_so():
        if time.monotonic() > until:
            raise SystemExit("it did not happen in time")
        time.sleep(0.1)


def keep(*words: str) -> list[str]:
    return [sys.executable, "-m", "weir", "keep", *words, "--policy", str(HERE / "keep.toml")]


def start_keeper() -> tuple[subprocess.Popen[str], str]:
    """`weir keep` for all tables below `lake`, and the address of its pages."""
    keeper = subprocess.Popen(
        [*keep("lake"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert keeper.stderr is not None
    return keeper, "http://" + keeper.stderr.readline().split()[-1]


def make_tables() -> tuple[weir.Table, weir.Table]:
    quick = weir.WriterConfig(fence_ttl=1, max_memtable_age="1s")  # as in keep.toml
    events = weir.create(
        "lake/events",
        {"producer": str, "number": int, "page": str},
        sharding=weir.PerWriter(silent_after="2s"),
        writer_defaults=quick,
    )
    pages = weir.create("lake/pages", Page, primary_key="page", writer_defaults=quick)
    events.changes("now", consumer="audit")  # from here on everything is kept for it
    return events, pages


def produce(events: weir.Table, consumer: Program) -> tuple[Program, dict[str, list[int]]]:
    """Let three producers append under bad luck; returns the numbers acknowledged to each."""
    running = {name: Program("produce.py", events.uri, name) for name in ("ada", "bob", "eve")}
    for program in running.values():
        program.wait_for(EVENTS)
    first = {shard.id for shard in events.shards()}
    running["ada"].end(signal.SIGKILL)
    running["bob"].running.send_signal(signal.SIGSTOP)  # for longer than `silent_after`
    consumer.wait_for(1)
    consumer.end(signal.SIGKILL)
    consumer = Program("consume.py", "lake/events", "lake/pages")
    # The keeper takes two writers for dead: it seals their shards, and folds the rows.
    wait_until(lambda: sum(not s.is_sealed and s.shard in first for s in events.stats().shards) < 2)
    running["bob"].running.send_signal(signal.SIGCONT)  # it goes on in another shard
    for name in ("bob", "eve"):
        running[name].wait_for(EVENTS)
        running[name].end(signal.SIGTERM)
        assert running[name].running.returncode == 0
    return consumer, {name: program.printed for name, program in running.items()}


def check_events(events: weir.Table, acknowledged: dict[str, list[int]]) -> int:
    """Every acknowledged event is in the table, and each is there once; returns how many."""
    rows = events.scan(["producer", "number"]).to_table().to_pylist()
    found = Counter((row["producer"], row["number"]) for row in rows)
    lost = [(n, i) for n, numbers in acknowledged.items() for i in numbers if not found[n, i]]
    assert not lost, f"acknowledged and lost: {lost}"
    assert set(found.values()) == {1}, "an event is there twice"
    return len(rows)


def check_counts(events: weir.Table, pages: weir.Table) -> None:
    """The counts of the consumer, of its table, and of SQL over the events are the same."""
    found = events.sql("SELECT page, count(*) AS n FROM events GROUP BY page").to_pylist()
    true = {row["page"]: row["n"] for row in found}
    with sqlite3.connect("visits.db") as db:
        assert dict(db.execute("SELECT page, n FROM visits")) == true
    assert {row["page"]: row["visits"] for row in pages.scan().to_table().to_pylist()} == true


def audit(events: weir.Table, count: int) -> None:
    """A consumer that came late: every event was kept for it, also from before each collection."""
    (late,) = (each for each in events.stats().consumers if each.name == "audit")
    assert late.lag > 0
    assert sum(change.batch.num_rows for change in events.changes(consumer="audit")) == count
    events.drop_consumer("audit")  # nothing is kept for it any longer


def report(events: weir.Table) -> None:
    """Columns and rows of a new table from a DataFrame; a second run of the job changes nothing."""
    found = events.sql("SELECT producer, count(*) AS n FROM events GROUP BY producer").to_pandas()
    table = weir.create("lake/report", found)
    with table.writer() as writer:
        assert [writer.put_once(found, app="report", version=1) for _ in range(2)] == [True, False]
    assert table.count() == len(found)


def check_keeper() -> None:
    """The same decisions, only named; and what became of those that were carried out."""
    named = subprocess.run([*keep("lake"), "--once", "--dry-run"], capture_output=True, check=True)
    assert b"/lake/report checkpoint often due " in named.stdout
    told = subprocess.run(keep("status", "lake"), capture_output=True, check=True)
    assert b"/lake/events compact succeeded " in told.stdout


def reshape(pages: weir.Table) -> None:
    """Columns and indexes, while nobody stops."""
    pages.add_columns({"length": "character_length(page)"})
    pages.rename_column("length", "letters")
    pages.create_index("visits")
    pages.create_fts_index("page")
    assert [index.name for index in pages.indexes()] == ["page_idx", "visits_idx"]
    pages.drop_index("visits_idx")
    with pages.writer() as writer:
        writer.delete_where("page = $gone", params={"gone": "/0"})
        writer.update_where(
            "page = $one", {"visits": "visits + $more"}, params={"one": "/1", "more": 5}
        )
    assert pages.count("page = $gone", params={"gone": "/0"}) == 0
    pages.drop_columns("letters")
    assert pages.schema.names == ["page", "visits"]


def main() -> None:
    events, pages = make_tables()
    keeper, address = start_keeper()
    consumer = Program("consume.py", "lake/events", "lake/pages")
    try:
        consumer, acknowledged = produce(events, consumer)
        consumer.end(signal.SIGKILL)
        count = check_events(events, acknowledged)
        last = Program("consume.py", "lake/events", "lake/pages", "once")
        last.end(signal.SIGCONT)
        assert last.running.returncode == 0
        check_counts(events, pages)
        audit(events, count)
        wait_until(lambda: not weir.due(events) and not events.stats().generations)
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            assert (
                'weir_keep_jobs_total{kind="compact",result="succeeded"}' in answer.read().decode()
            )
    finally:
        consumer.running.kill()
        keeper.send_signal(signal.SIGTERM)
        keeper.communicate(timeout=200)
    assert keeper.returncode == 0
    report(events)
    check_keeper()
    reshape(pages)
    assert {"columns", "index"} <= {entry.kind for entry in pages.history()}
    print(f"{count} events, each once; {sum(map(len, acknowledged.values()))} acknowledged; 0 lost")


if __name__ == "__main__":
    main()
