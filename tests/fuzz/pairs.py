"""Every pair of upkeep verbs: the second in the middle of the first, and after the first died.

    python -m tests.fuzz.pairs                      all pairs, at every write; half an hour
    python -m tests.fuzz.pairs --first restore      those whose first verb is that one
    python -m tests.fuzz.pairs --first restore --then gc --at 3 --mode beside      one run
    python -m tests.fuzz.pairs --table appended     on tables of another kind

The first verb stops at its n-th write to a store, for every n. *Died*: its process is gone, before
or after that write; the second verb runs, and then the first again. *Beside*: the second verb runs
from its beginning to its end, and the first goes on. Either may be refused, in words that its page
has. In the end the table must hold what a model of its rows says after the verbs that were not
refused, in one order or the other, and every checkpoint and clone what the model was at some
moment.
"""

import argparse
import itertools
import logging
import shutil
import sys
import tempfile
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import weir
from tests.support.dying import Life
from tests.support.tables import load_rows
from weir.errors import CommitConflict, FencedError, InvalidInput, SealedShard

Row = tuple[int, str]
Rows = Counter[Row]
Mode = Literal["died", "beside"]
MODES: tuple[Mode, ...] = ("died", "beside")
Kind = Literal["keyed", "appended", "per-writer"]
KINDS: tuple[Kind, ...] = ("keyed", "appended", "per-writer")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
WRITES = 200
REFUSED = (CommitConflict, FencedError, InvalidInput, SealedShard)


@dataclass(frozen=True)
class Model:
    """What a table was made as, and holds."""

    kind: Kind
    rows: Rows
    held: Rows
    """At the checkpoint `held`."""

    def put(self, rows: Rows, more: Iterable[Row]) -> Rows:
        """Those rows with more of them: of a key, the last one."""
        new = [*more]
        ids = {id_ for id_, _ in new} if self.kind == "keyed" else set()
        return Counter({row: n for row, n in rows.items() if row[0] not in ids}) + Counter(new)


Effect = Callable[[Model, Rows], Rows]


@dataclass(frozen=True)
class Verb:
    """One verb of upkeep, and what it does to the rows."""

    run: Callable[[weir.Table, Path], object]
    effect: Effect = lambda _, rows: rows


def _overwrite(table: weir.Table, _: Path) -> None:
    load_rows(table, {91: "overwritten"}, replaces=True)


VERBS: dict[str, Verb] = {
    "compact": Verb(lambda t, _: t.compact(lease=0, rewrite=True)),
    "fold_wal": Verb(lambda t, _: t.compact(lease=0, fold_wal=True)),
    "gc": Verb(lambda t, _: _collected(t)),
    "checkpoint": Verb(lambda t, _: t.checkpoint("durable")),
    "checkpoint_all": Verb(lambda t, _: t.checkpoint("all")),
    "clone": Verb(lambda t, at: t.clone(str(at / "clone"), "held")),
    "deep_clone": Verb(lambda t, at: t.clone(str(at / "deep"), "held", deep=True)),
    "restore": Verb(lambda t, _: t.restore("held"), lambda model, _: model.held),
    "reshard": Verb(lambda t, _: t.reshard(weir.Bucket("id", 3))),
    "move_wal": Verb(lambda t, at: t.move_wal(str(at / "wal"))),
    "load": Verb(
        lambda t, _: load_rows(t, {90: "loaded"}, replaces=False),
        lambda model, rows: model.put(rows, [(90, "loaded")]),
    ),
    "overwrite": Verb(_overwrite, lambda _, __: Counter([(91, "overwritten")])),
    "add_columns": Verb(lambda t, _: _with_column(t)),
}


def _collected(table: weir.Table) -> None:
    report = table.gc(min_age=0)
    wrong = [error for error in report.errors if "CommitConflict" not in error]
    assert not wrong, wrong


def _with_column(table: weir.Table) -> None:
    if "w" not in table.schema.names:
        table.add_columns(pa.field("w", pa.int64()))


def build(folder: Path, kind: Kind) -> Model:
    """A table with rows in its base, in SSTables and in its logs."""
    table = weir.create(
        str(folder / "t"),
        SCHEMA,
        primary_key="id" if kind == "keyed" else None,
        sharding=weir.PerWriter("0s") if kind == "per-writer" else weir.Bucket("id", 2),
    )
    model = Model(kind, Counter(), Counter())

    def put(rows: Rows, ids: range, text: str, *, memtable: bool = True) -> Rows:
        with table.writer(weir.WriterConfig(enable_memtable=memtable)) as writer:
            writer.put([{"id": i, "v": text} for i in ids])
        return model.put(rows, [(i, text) for i in ids])

    rows = put(Counter(), range(10), "base")
    table.compact()
    held = put(rows, range(5, 15), "sstable")
    table.checkpoint("durable", name="held")
    return Model(kind, put(held, range(10, 20), "log", memtable=False), held)


class Meanwhile(Life):
    """A process in whose n-th write something else happens first."""

    def __init__(self, write: int, act: Callable[[], None]) -> None:
        super().__init__(None)
        self.at = write
        self.act = act
        self.happened = False

    def write(self, apply: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes == self.at:
            self.happened = True
            self.act()
        return apply()


class Run:
    """Two verbs on one table."""

    def __init__(self, saved: Path, folder: Path, model: Model, first: str, then: str) -> None:
        self.folder = folder / uuid.uuid4().hex[:8]
        shutil.copytree(saved, self.folder)
        self.uri = str(self.folder / "t")
        self.model, self.first, self.then = model, VERBS[first], VERBS[then]
        self.tried: list[tuple[Effect, bool]] = []
        """What was done, and whether it is known to have been done."""

    def attempt(self, verb: Verb, table: weir.Table | None = None) -> bool:
        """Run a verb; False when it was refused."""
        try:
            verb.run(table or weir.open(self.uri), self.folder)
        except REFUSED:
            return False
        self.tried.append((verb.effect, True))
        return True

    def died(self, write: int) -> bool:
        """The first dies at that write; False when it ended before."""
        life = Life((write + 1) // 2, "before" if write % 2 else "after")
        try:
            self.first.run(life.table(weir.open(self.uri)), self.folder)
        except Exception as error:
            if not life.dead and not isinstance(error, REFUSED):
                raise
        if not life.dead:
            return False
        self.tried.append((self.first.effect, False))
        self.attempt(self.then)
        self.attempt(self.first)
        self.check()
        return True

    def beside(self, write: int) -> bool:
        """The second runs in that write of the first; False when the first ended before."""
        life = Meanwhile(write, lambda: self.attempt(self.then))
        did_first = self.attempt(self.first, life.table(weir.open(self.uri)))
        if not life.happened:
            return False
        if not did_first and not self.attempt(self.first):
            self.tried.append((self.first.effect, False))
        self.check()
        return True

    def reached(self) -> tuple[list[Rows], list[Rows]]:
        """What the table may hold after what was tried, in any order; and at any moment before."""
        ends: list[Rows] = []
        moments = [self.model.held, self.model.rows]
        for order in itertools.permutations(self.tried):
            for took in itertools.product(
                *[(True,) if sure else (True, False) for _, sure in order]
            ):
                rows = self.model.rows
                for effect in (
                    effect for (effect, _), is_in in zip(order, took, strict=True) if is_in
                ):
                    rows = effect(self.model, rows)
                    moments.append(rows)
                ends.append(rows)
        return ends, moments

    def check(self) -> None:
        """Compare what is there with what may be there."""
        ends, moments = self.reached()
        table = weir.open(self.uri)
        self._require(ends, table)
        for made in table.checkpoints():
            if made.owner is None:
                wanted = [self.model.held] if made.name == "held" else moments
                self._require(wanted, table, checkpoint=made)
        for name in ("clone", "deep"):
            if weir.exists(str(self.folder / name)):
                self._require([self.model.held], weir.open(str(self.folder / name)))
        with table.writer() as writer:
            writer.put([{"id": 99, "v": "after"}])
        table.compact(lease=0)
        _collected(table)
        after = [self.model.put(end, [(99, "after")]) for end in ends]
        self._require(after, weir.open(self.uri))

    def _require(self, wanted: list[Rows], table: weir.Table, **how: Any) -> None:
        found = table.scan(["id", "v"], **how).to_table().to_pylist()
        held = Counter((row["id"], row["v"]) for row in found)
        wrong = [sorted({*(held - rows), *(rows - held)}) for rows in wanted if held != rows]
        assert len(wrong) < len(wanted), f"{table.uri} {how} differs by {min(wrong, key=len)}"

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run(
    first: str, then: str, modes: tuple[Mode, ...], writes: range, kind: Kind = "keyed"
) -> Iterator[str | None]:
    """Run a pair at those writes of the first; yields None for each run, or how it failed."""
    folder = Path(tempfile.mkdtemp(prefix="weir-pairs-"))
    try:
        model = build(folder / "saved", kind)
        for mode in modes:
            for write in writes:
                one = Run(folder / "saved", folder, model, first, then)
                try:
                    if not (one.died if mode == "died" else one.beside)(write):
                        break
                    yield None
                except Exception:
                    again = (
                        f"--table {kind} --first {first} --then {then} --mode {mode} --at {write}"
                    )
                    yield f"{traceback.format_exc()}again: python -m tests.fuzz.pairs {again}"
                finally:
                    one.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the pairs that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pairs")
    parser.add_argument("--first", choices=VERBS)
    parser.add_argument("--then", choices=VERBS)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--table", choices=KINDS, default="keyed")
    parser.add_argument("--at", type=int, help="only at that write")
    parser.add_argument("--every", type=int, default=1, help="only at every n-th write")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    writes = range(1, WRITES, args.every) if args.at is None else range(args.at, args.at + 1)
    runs = failed = 0
    for first, then in itertools.product(VERBS, VERBS):
        if args.first in (None, first) and args.then in (None, then):
            for told in run(first, then, (args.mode,) if args.mode else MODES, writes, args.table):
                runs += 1
                if told is not None:
                    failed += 1
                    print(f"FAILED {first}, {then}\n{told}", flush=True)
    print(f"{runs} runs, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
