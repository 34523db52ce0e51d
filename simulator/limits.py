"""Limits so small that a simulated history reaches them (F-15, L-10).

Rows have a text of any size; entries, reads and generations may hold a few kilobytes. The judge
demands that no entry exceeds the limit, and that none within it is refused; that a put refused for
its size harms no other caller; that a generation holds no more than the table's own settings allow
any writer to replay; and that a process that reads, folds or follows a log holds no more bytes of
it than its bound, however long the log is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from simulator.deletions import split_uri
from simulator.holdings import Ledger
from simulator.keepers import collector, compactor
from simulator.roles import Session, core_of, table_rows, to_batch, write_record
from simulator.scenarios import SHARD, TABLE, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import BatchId, Put, Row, State, Violation
from simulator.world import Faults
from weir.errors import InvalidInput, SnapshotExpired, StoreError, WeirError
from weir.format import paths
from weir.making import open as open_table
from weir.read.changes import Changes
from weir.read.scan import Scan
from weir.routing.core import Core
from weir.store.api import Bytes

OVERHEAD = 3000
"""More bytes than schema, headers and padding take in an entry of these rows."""
TEXT = "s"


def draw_limits(plan: Plan, rng: random.Random) -> None:
    """Small limits, large rows, and in half of the histories no faults."""
    entry_bytes = rng.choice((8_000, 12_000))
    rows = rng.choice((2, 5, 12, 100_000))
    plan.edge = {
        "column": "padding",
        "limits": {"entry_bytes": entry_bytes, "read_bytes": rng.choice((200, 1000, 3000))},
        "defaults": {
            "max_memtable_rows": rows,
            "max_memtable_batches": rng.choice((1, 3, 8_000)),
        },
        "large": rng.choice((0.0, 0.1, 0.3)),
    }
    plan.is_story = plan.moves = True
    plan.places = [None]
    if rng.random() < 0.5:
        plan.faults = Faults().record()
    for role in plan.roles:
        if role.kind == "padded":
            role.ops = rng.choice((6, 15, 40))
            if rng.random() < 0.5:
                role.kills = []
            role.config["max_memtable_size"] = 256 << 20
            role.config["max_unflushed_memtable_bytes"] = 1 << 30
    if rng.random() < 0.25:
        _queue_much(plan)


def _queue_much(plan: Plan) -> None:
    """Queue many puts that no caller waits for; without a limit all would go into one entry."""
    plan.edge["large"] = 0.4
    plan.edge["defaults"] = {"max_memtable_rows": 100_000, "max_memtable_batches": 8_000}
    for role in plan.roles:
        if role.kind == "padded":
            role.config |= {
                "durable_write": False,
                "max_memtable_rows": 100_000,
                "max_memtable_batches": 8_000,
                "max_wal_buffer_size": 10 << 20,
                "max_wal_flush_interval": 1000.0,
            }


@dataclass(frozen=True)
class Filled:
    """How much of its generation's room an entry takes."""

    position: int
    puts: frozenset[BatchId]
    rows: int
    batches: int


class LimitJudge:
    """Watches the log: entries within their bytes, generations within the table's bounds (F-15)."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        defaults = run.plan.edge["defaults"]
        self._rows: int = defaults["max_memtable_rows"]
        self._batches: int = defaults["max_memtable_batches"]
        self._generations: dict[int, list[Filled]] = {}
        """Entries above R, by tag."""

    def on_write(self, _actor: Actor, _op: str, uri: str, data: Bytes) -> None:
        """See `World.on_write`."""
        root, path = split_uri(uri)
        parts = path.split("/")
        if root != TABLE or len(parts) != 4 or parts[2] != "wal":
            return
        position = paths.parse_wal_name(parts[3])
        if position is None:
            return
        most = self._run.limits.entry_bytes
        if len(data) > most:
            raise Violation("I", f"an entry of {len(data)} bytes, where {most} may be (F-15)")
        self._ledger.largest = max(self._ledger.largest, len(data))
        self._count(position, data)

    def _count(self, position: int, data: Bytes) -> None:
        reader = pa.ipc.open_stream(data)
        tag = int((reader.schema.metadata or {}).get(b"generation", b"0"))
        self._ledger.generations[tag] += len(data)
        truth = self._run.judge.truth(SHARD)
        flushed = truth.manifests[truth.last_version].replay_after
        entries = [e for e in self._generations.get(tag, ()) if e.position > flushed]
        batches = list(reader)
        puts = {
            put
            for batch in batches
            for put in zip(batch["w"].to_pylist(), batch["c"].to_pylist(), strict=True)
        }
        rows = sum(batch.num_rows for batch in batches)
        entries.append(Filled(position, frozenset(puts), rows, len(batches)))
        self._generations[tag] = entries
        if len({put for entry in entries for put in entry.puts}) < 2:
            return  # a single larger put has a generation of its own
        held = sum(entry.rows for entry in entries), sum(entry.batches for entry in entries)
        if held[0] > self._rows or held[1] > self._batches:
            raise Violation("I", f"generation {tag} has {held} rows and batches (F-15): {entries}")


class PaddedSession(Session):
    """A writer whose rows are of any size, some of them too large."""

    def __init__(self, run: Run, actor: Actor, role: Role, number: int) -> None:
        super().__init__(run, actor, role, number)
        self.sizes: dict[BatchId, int] = {}

    def make(self) -> tuple[Put, pa.RecordBatch]:
        """A batch with a text in each row."""
        put, _ = super().make()
        return put, self._padded(put)

    def _padded(self, put: Put) -> pa.RecordBatch:
        most = self.run.limits.entry_bytes
        if self.rng.random() < self.run.plan.edge["large"]:
            size = int(most * self.rng.choice((0.4, 0.7, 0.85, 1.0, 1.5)))
        else:
            size = self.rng.choice((0, 50, 400, 1500))
        self.sizes[put.id] = size
        texts = pa.array(["x" * (size // len(put.rows))] * len(put.rows))
        return to_batch(put.rows).append_column(TEXT, texts)

    def _failed(self, error: WeirError, put: Put | None) -> None:
        self._check_cause(error)
        if isinstance(error, InvalidInput):
            self._check_refusal(error, put)
        super()._failed(error, put)

    def _hear(self, error: WeirError, put: Put | None) -> None:
        self._check_cause(error)
        super()._hear(error, put)

    def _check_cause(self, error: WeirError) -> None:
        """Accepted rows fit into whichever entry they go: they must never end a writer."""
        if isinstance(error.__cause__, InvalidInput):
            raise Violation("T", f"a writer ended by rows it had accepted: {error}") from error

    def _check_refusal(self, error: InvalidInput, put: Put | None) -> None:
        """F-15: rows are refused only before they are accepted, and only if they do not fit."""
        if put is None or any(put is accepted for accepted in self.accepted):
            raise Violation("T", f"rows were accepted and refused afterwards: {error}") from error
        size = self.sizes[put.id]
        if size + OVERHEAD < self.run.limits.entry_bytes:
            raise Violation("T", f"{put.id} of {size} bytes was refused: {error}") from error
        self.run.judge.counts["puts too large"] += 1


def padded(run: Run, actor: Actor, role: Role) -> None:
    """Opens, puts rows of any size, closes, and again."""
    for _ in range(role.sessions):
        PaddedSession(run, actor, role, run.next_session()).live()


def thrifty_compactor(run: Run, actor: Actor, role: Role) -> None:
    """Folds in bounded memory."""
    run.ledger.watch(actor)
    compactor(run, actor, role)


def thrifty_collector(run: Run, actor: Actor, role: Role) -> None:
    """Collects in bounded memory."""
    run.ledger.watch(actor)
    collector(run, actor, role)


def thrifty_reader(run: Run, actor: Actor, role: Role) -> None:
    """Reads through one handle, in every way that streams, and holds one batch at a time."""
    run.ledger.watch(actor)
    rng = random.Random(f"thrifty/{run.plan.seed}/{actor.name}")
    reads: dict[str, Callable[[View], None]] = {
        "scan": _scan,
        "count": _count,
        "filter": _filter,
        "changes": _follow,
        "clone": _clone,
    }
    core = core_of(run, actor)
    for _ in range(role.ops):
        kind = rng.choice(sorted(reads))
        try:
            reads[kind](View(run, core, run.judge.truth(SHARD).acked))
        except (StoreError, SnapshotExpired) as error:
            run.note(actor, f"{kind} failed: {type(error).__name__}")
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
        else:
            run.judge.counts[f"thrifty {kind}"] += 1
            run.note(actor, f"read by {kind}")
        actor.env.clock.sleep(0.05)


@dataclass(frozen=True)
class View:
    """One read of the table, begun when everything up to `low` was acknowledged."""

    run: Run
    core: Core
    low: int

    def states(self) -> list[State]:
        """The states that it may show."""
        truth = self.run.judge.truth(SHARD)
        return [truth.state(position) for position in range(self.low, truth.tip + 1)]


def _scan(view: View) -> None:
    _check_rows(view, Scan(view.core))


def _check_rows(view: View, scan: Scan, high: int | None = None) -> None:
    rows: list[Row] = []
    for batch in scan.to_batches():
        rows += table_rows(pa.Table.from_batches([batch]))
    tip = view.run.judge.truth(SHARD).tip
    view.run.judge.viewed(SHARD, rows, low=view.low, high=tip if high is None else high)


def _count(view: View) -> None:
    found = Scan(view.core).count()
    counts = {len(state) for state in view.states()}
    if found not in counts:
        raise Violation("R", f"counted {found} rows, and there were {sorted(counts)}")


def _filter(view: View) -> None:
    rows: list[Row] = []
    for batch in Scan(view.core, filter="k >= 3").to_batches():
        rows += table_rows(pa.Table.from_batches([batch]))
    for state in view.states():
        if {*rows} == {row for row in state.values() if row[0] >= 3}:
            return
    raise Violation("R", f"found {rows}, which the table never held")


def _clone(view: View) -> None:
    """Clone the table, and check the rows of the clone."""
    run, env = view.run, view.core.env
    uri = f"s3://clone-{run.next_session()}"
    made = open_table(TABLE, env=env).clone(uri)
    high = run.judge.truth(SHARD).tip
    _check_rows(view, Scan(made.core), high)


def _follow(view: View) -> None:
    """Read every change that is still in the log, in order."""
    log = view.run.judge.truth(SHARD).log
    for change in Changes(view.core):
        if change.kind == "delete":
            continue
        rows = table_rows(pa.Table.from_batches([change.batch]))
        if not {*rows} <= {*log[change.position].rows}:
            raise Violation("R", f"a change at {change.position} has other rows: {rows}")


def make_limited(run: Run, actor: Actor) -> None:
    """Make the table, and watch its log and its readers."""
    write_record(run, actor)
    run.world.hand = run.ledger.hand
    run.world.on_write.append(LimitJudge(run, run.ledger).on_write)


LIMITED = {
    "padded": padded,
    "thrifty-collector": thrifty_collector,
    "thrifty-compactor": thrifty_compactor,
    "thrifty-reader": thrifty_reader,
}
