"""Every pair of upkeep verbs: the second in the middle of the first, and after the first died.

    python -m tests.fuzz.pairs                      all pairs, at every write; two hours
    python -m tests.fuzz.pairs --first restore      those whose first verb is that one
    python -m tests.fuzz.pairs --first restore --then gc --at 3 --mode beside      one run
    python -m tests.fuzz.pairs --table appended     on tables of another kind

The first verb stops at its n-th write to a store, for every n. *Died*: its process is gone, before
or after that write; the second verb runs, and then the first again. *Beside*: the second verb runs
from its beginning to its end, and the first goes on. Either may be refused, in words that its page
has. In the end the table must hold what a model of its rows says after the verbs that were not
refused, in one order or the other, and every checkpoint and clone what the model was at some
moment. What a program that knows only Lance does to the base may be the second verb too.
"""

import argparse
import datetime as dt
import itertools
import logging
import shutil
import sys
import tempfile
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa

import weir
from tests.support.dying import Life
from tests.support.tables import load_rows
from weir.errors import (
    CheckpointNotFound,
    CommitConflict,
    FencedError,
    InvalidInput,
    NotAWeirTable,
    SealedShard,
    WeirError,
)
from weir.format.sharding import field_entries
from weir.routing.core import first_manifest
from weir.routing.opening import open as open_core
from weir.routing.shards import Shard
from weir.upkeep.drop import drop as drop_core

Row = tuple[int, str]
Rows = Counter[Row]
Mode = Literal["died", "beside"]
MODES: tuple[Mode, ...] = ("died", "beside")
Kind = Literal["keyed", "appended", "per-writer", "rival"]
KINDS: tuple[Kind, ...] = ("keyed", "appended", "per-writer", "rival")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("spare", pa.int64())]
)
WRITES = 200
REFUSED = (
    CheckpointNotFound,
    CommitConflict,
    FencedError,
    InvalidInput,
    NotAWeirTable,
    SealedShard,
)
THEIRS = "theirs"
RIVALS = (50, 52, 57)
"""Keys of the first bucket of two."""
RIVAL = uuid.UUID(int=7)
"""A shard of another program, in tables of that kind; its rows count once it is adopted."""


BASE = range(10)
LEFT = (91, "overwritten")
NEW = (70, "new")


@dataclass(frozen=True)
class Model:
    """What a table was made as, and holds."""

    kind: Kind
    rows: Rows
    held: Rows
    """At the checkpoint `held`."""

    @property
    def is_keyed(self) -> bool:
        return self.kind in ("keyed", "rival")

    def put(self, rows: Rows, more: Iterable[Row]) -> Rows:
        """Those rows with more of them: of a key, the last one."""
        new = [*more]
        ids = {id_ for id_, _ in new} if self.is_keyed else set()
        return Counter({row: n for row, n in rows.items() if row[0] not in ids}) + Counter(new)


Effect = Callable[[Model, Rows], Rows]


@dataclass(frozen=True)
class Verb:
    """One verb of upkeep, and what it does to the rows."""

    run: Callable[[weir.Table, Path], object]
    effect: Effect = lambda _, rows: rows
    ends: bool = False
    """The table is gone afterwards, and a handle of it changes nothing of the next one."""
    is_sure: bool = True
    """It takes effect when it is not refused; else its rows may have been there, or gone before."""


def _overwrite(table: weir.Table, _: Path) -> None:
    load_rows(table, dict([LEFT]), replaces=True)


def _released(table: weir.Table, _: Path) -> None:
    """Let go of the clone that somebody deleted, by the word of an operator."""
    owners = {made.owner for made in table.checkpoints() if made.owner is not None}
    gone = [owner for owner in owners if not Path(owner).exists()]
    if not gone:
        raise InvalidInput("it was released before")
    for owner in gone:
        table.release_clone(owner)


def _dropped(table: weir.Table, at: Path) -> None:
    with suppress(InvalidInput, CheckpointNotFound, NotAWeirTable):
        _released(table, at)
    drop_core(table.core)


def _made_again(table: weir.Table, at: Path) -> None:
    _dropped(table, at)
    made = weir.create(
        table.uri, SCHEMA, primary_key=table.primary_key or None, sharding=table.sharding
    )
    with made.writer() as writer:
        writer.put([{"id": NEW[0], "v": NEW[1]}])


def _collected(table: weir.Table) -> None:
    report = table.gc(min_age=0)
    refused = ("CommitConflict", "NotAWeirTable")
    wrong = [error for error in report.errors if not any(name in error for name in refused)]
    assert not wrong, wrong


def _with_column(table: weir.Table) -> None:
    if "w" not in table.schema.names:
        table.add_columns(pa.field("w", pa.int64()))


VERBS: dict[str, Verb] = {
    "compact": Verb(lambda t, _: t.compact(lease=0, rewrite=True)),
    "fold_wal": Verb(lambda t, _: t.compact(lease=0, fold_wal=True)),
    "gc": Verb(lambda t, _: _collected(t)),
    "checkpoint": Verb(lambda t, _: t.checkpoint("durable")),
    "checkpoint_all": Verb(lambda t, _: t.checkpoint("all")),
    "delete_checkpoint": Verb(lambda t, _: t.delete_checkpoint("held")),
    "clone": Verb(lambda t, at: t.clone(str(at / "clone"), "held")),
    "deep_clone": Verb(lambda t, at: t.clone(str(at / "deep"), "held", deep=True)),
    "discard_clone": Verb(lambda t, at: t.discard_clone(str(at / "clone"))),
    "release_clone": Verb(_released),
    "restore": Verb(lambda t, _: t.restore("held"), lambda model, _: model.held),
    "reshard": Verb(lambda t, _: t.reshard(weir.Bucket("id", 3))),
    "move_wal": Verb(lambda t, at: t.move_wal(str(at / "wal"))),
    "load": Verb(
        lambda t, _: load_rows(t, {90: "loaded"}, replaces=False),
        lambda model, rows: model.put(rows, [(90, "loaded")]),
    ),
    "overwrite": Verb(_overwrite, lambda _, __: Counter([LEFT])),
    "add_columns": Verb(lambda t, _: _with_column(t)),
    "drop_columns": Verb(lambda t, _: t.drop_columns("spare")),
    "rename_column": Verb(lambda t, _: t.rename_column("spare", "used")),
    "create_index": Verb(lambda t, _: t.create_index("id", replace=True)),
    "drop_index": Verb(lambda t, _: t.drop_index("v_first")),
    "follow": Verb(lambda t, _: [*t.follow("copy", once=True)]),
    "drop": Verb(_dropped, ends=True),
    "make_again": Verb(_made_again, lambda _, __: Counter([NEW]), ends=True),
}
ADOPT: dict[str, Verb] = {
    "adopt_shard": Verb(
        lambda t, _: t.adopt_shard(RIVAL, "newer"),
        lambda model, rows: model.put(rows, [(n, THEIRS) for n in RIVALS]),
        is_sure=False,
    ),
}
"""Run on tables with a shard of another program, before and after all others."""


def _lance_append(table: weir.Table, _: Path) -> None:
    dataset = lance.dataset(table.uri)
    rows = pa.Table.from_pylist([{"id": 92, "v": "lance"}], dataset.schema)
    lance.write_dataset(rows, dataset, mode="append")


def _lance_cleanup(table: weir.Table, _: Path) -> None:
    lance.dataset(table.uri).cleanup_old_versions(
        older_than=dt.timedelta(0), error_if_tagged_old_versions=False
    )


STRANGERS: dict[str, Verb] = {
    "lance_append": Verb(_lance_append, lambda model, rows: model.put(rows, [(92, "lance")])),
    "lance_compact": Verb(lambda t, _: lance.dataset(t.uri).optimize.compact_files()),
    "lance_cleanup": Verb(_lance_cleanup),
    "lance_index": Verb(
        lambda t, _: lance.dataset(t.uri).create_scalar_index("id", "BTREE", replace=True)
    ),
    "lance_delete": Verb(
        lambda t, _: lance.dataset(t.uri).delete("id < 3"),
        lambda _, rows: Counter({row: n for row, n in rows.items() if row[0] >= 3}),
    ),
}
"""What others do to the base, in the middle of a verb or after its death; never first."""
EVERY = VERBS | ADOPT | STRANGERS


def verbs_of(kind: Kind) -> tuple[dict[str, Verb], dict[str, Verb]]:
    """The verbs that come first on such a table, and those that come then."""
    return (ADOPT | VERBS if kind == "rival" else VERBS), (
        ADOPT | VERBS if kind == "rival" else VERBS | STRANGERS
    )


def build(folder: Path, kind: Kind) -> Model:
    """A table with rows in its base, in SSTables and in its logs, an index, a pin of a clone that
    is gone."""
    table = weir.create(
        str(folder / "t"),
        SCHEMA,
        primary_key="id" if kind in ("keyed", "rival") else None,
        sharding=weir.PerWriter("0s") if kind == "per-writer" else weir.Bucket("id", 2),
    )
    model = Model(kind, Counter(), Counter())

    def put(rows: Rows, ids: range, text: str, *, memtable: bool = True) -> Rows:
        with table.writer(weir.WriterConfig(enable_memtable=memtable)) as writer:
            writer.put([{"id": i, "v": text} for i in ids])
        return model.put(rows, [(i, text) for i in ids])

    rows = put(Counter(), BASE, "base")
    table.compact()
    table.create_index("v", name="v_first")
    held = put(rows, range(5, 15), "sstable")
    table.checkpoint("durable", name="held")
    table.clone(str(folder / "lost"), "held")
    shutil.rmtree(folder / "lost")
    rows = put(held, range(10, 20), "log", memtable=False)
    if kind == "rival":
        entries = field_entries(table.sharding, 0, None)
        table.core.log(RIVAL).manifests.create(first_manifest(RIVAL, 1, entries))
        with Shard(table.core, RIVAL, None, is_routed=False).writer() as theirs:
            theirs.put([{"id": n, "v": THEIRS} for n in RIVALS])
        rows = model.put(rows, [(n, THEIRS) for n in RIVALS])
    return Model(kind, rows, held)


class Meanwhile(Life):
    """A process in whose n-th write something else happens first."""

    def __init__(self, write: int, act: Callable[[], object], *, deletes_first: bool) -> None:
        super().__init__(None)
        self.at = write
        self.act = act
        self.happened = False
        self.deletes_first = deletes_first
        """A request to delete that comes late takes what the next table has: a limit of C-16."""

    def write(self, apply: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes != self.at:
            return apply()
        self.happened = True
        if self.deletes_first and self.verb == "delete":
            answer = apply()
            self.act()
            return answer
        self.act()
        return apply()


@dataclass(frozen=True)
class Tried:
    """A verb that ran."""

    verb: Verb
    is_done: bool
    """It is known that it took effect; else it may have."""
    table: uuid.UUID
    """The id of the table that its handle is of."""


class Run:
    """Two verbs on one table."""

    def __init__(self, saved: Path, model: Model, first: str, then: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weir-pairs-")) / "tables"
        shutil.copytree(saved, self.folder)
        self.uri = str(self.folder / "t")
        self.model, self.first, self.then = model, EVERY[first], EVERY[then]
        self.tried: list[Tried] = []

    def open(self, verb: Verb) -> weir.Table:
        """A new handle for that verb."""
        return weir.Table(open_core(self.uri, to_drop=verb.ends))

    def attempt(self, verb: Verb, table: weir.Table | None = None) -> bool:
        """Run a verb; False when it was refused."""
        try:
            opened = table or self.open(verb)
            verb.run(opened, self.folder)
        except REFUSED:
            return False
        except WeirError:
            if any(one.verb.ends for one in self.tried):
                return False  # it met the drop in the middle of a request
            raise
        self.tried.append(Tried(verb, is_done=True, table=opened.core.record.table_id))
        return True

    def died(self, write: int) -> bool:
        """The first dies at that write; False when it ended before."""
        life = Life((write + 1) // 2, "before" if write % 2 else "after")
        table = self.open(self.first)
        try:
            self.first.run(life.table(table), self.folder)
        except Exception as error:
            if not life.dead and not isinstance(error, REFUSED):
                raise
        if not life.dead:
            return False
        self.tried.append(Tried(self.first, is_done=False, table=table.core.record.table_id))
        self.attempt(self.then)
        self.attempt(self.first)
        self.check()
        return True

    def beside(self, write: int) -> bool:
        """The second runs in that write of the first; False when the first ended before."""
        again = self.first.ends and self.then.ends
        life = Meanwhile(write, lambda: self.attempt(self.then), deletes_first=again)
        table = self.open(self.first)
        did_first = self.attempt(self.first, life.table(table))
        if not life.happened:
            return False
        if not did_first:
            self.tried.append(Tried(self.first, is_done=False, table=table.core.record.table_id))
            self.attempt(self.first)
        self.check()
        return True

    def reached(self) -> tuple[list[Rows | None], list[Rows]]:
        """What the table may hold after what was tried, in any order, None where it is gone; and at
        any moment before."""
        ends: list[Rows | None] = []
        moments = [self.model.held, self.model.rows]
        for order in itertools.permutations(self.tried):
            for took in itertools.product(
                *[(True,) if one.is_done and one.verb.is_sure else (True, False) for one in order]
            ):
                done = [one for one, is_in in zip(order, took, strict=True) if is_in]
                rows: Rows | None = self.model.rows
                gone: set[uuid.UUID] = set()
                for one in done:
                    if one.table in gone and not one.verb.ends:
                        break  # by a handle of a table that is gone
                    if one.table in gone and one.verb is VERBS["drop"]:
                        continue  # it was dropped before
                    rows = one.verb.effect(self.model, rows or Counter())
                    if one.verb.ends:
                        gone.add(one.table)
                        rows = rows if one.verb is VERBS["make_again"] else None
                        ends += [] if one.is_done else [None]  # it died before it made it again
                    moments += [] if rows is None else [rows]
                else:
                    ends.append(rows)
        return ends, moments

    def check(self) -> None:
        """Compare what is there with what may be there."""
        ends, moments = self.reached()
        self._check_clones()
        if not weir.exists(self.uri):
            assert None in ends, f"{self.uri} is gone"
            with suppress(NotAWeirTable):  # its drop was not finished
                self.attempt(VERBS["drop"])
            weir.create(self.uri, SCHEMA, primary_key="id" if self.model.is_keyed else None)
            ends, moments = [Counter()], [Counter()]
        wanted = [rows for rows in ends if rows is not None]
        table = weir.open(self.uri)
        self._require(wanted, table)
        for made in table.checkpoints():
            if made.owner is None:
                at = [self.model.held] if made.name == "held" else moments
                self._require(at, table, checkpoint=made)
        if self.model.kind == "rival":
            self.attempt(ADOPT["adopt_shard"], table)
        with table.writer() as writer:
            writer.put([{"id": 99, "v": "after"}])
        table.compact(lease=0)
        _collected(table)
        after = [self.model.put(end, [(99, "after")]) for end in wanted]
        self._require(after, weir.open(self.uri))
        self._check_clones()

    def _check_clones(self) -> None:
        for name in ("clone", "deep"):
            if weir.exists(str(self.folder / name)):
                self._require([self.model.held], weir.open(str(self.folder / name)))

    def _require(self, wanted: list[Rows], table: weir.Table, **how: Any) -> None:
        for filter in (None, "v >= 'a'", "id >= 0"):
            found = table.scan(["id", "v"], filter, **how).to_table().to_pylist()
            held = Counter((row["id"], row["v"]) for row in found)
            wrong = [sorted({*(held - rows), *(rows - held)}) for rows in wanted if held != rows]
            differs = f"{table.uri} {filter} {how} differs by {min(wrong, key=len, default=[])}"
            assert len(wrong) < len(wanted), differs

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)


@cache
def built(kind: Kind) -> tuple[tempfile.TemporaryDirectory[str], Model]:
    """A folder with a table of that kind, which every run copies."""
    folder = tempfile.TemporaryDirectory(prefix="weir-pairs-", ignore_cleanup_errors=True)
    return folder, build(Path(folder.name), kind)


def run(
    first: str, then: str, modes: tuple[Mode, ...], writes: range, kind: Kind = "keyed"
) -> Iterator[str | None]:
    """Run a pair at those writes of the first; yields None for each run, or how it failed."""
    saved, model = built(kind)
    for mode in modes:
        for write in writes:
            one = Run(Path(saved.name), model, first, then)
            try:
                if not (one.died if mode == "died" else one.beside)(write):
                    break
                yield None
            except Exception:
                again = f"--table {kind} --first {first} --then {then} --mode {mode} --at {write}"
                yield f"{traceback.format_exc()}again: python -m tests.fuzz.pairs {again}"
            finally:
                one.close()


def main() -> int:
    """Run the pairs that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pairs")
    parser.add_argument("--first", choices=EVERY)
    parser.add_argument("--then", choices=EVERY)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--table", choices=KINDS, default="keyed")
    parser.add_argument("--at", type=int, help="only at that write")
    parser.add_argument("--every", type=int, default=1, help="only at every n-th write")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    writes = range(1, WRITES, args.every) if args.at is None else range(args.at, args.at + 1)
    runs = failed = 0
    for first, then in itertools.product(*verbs_of(args.table)):
        if args.table == "rival" and not ADOPT.keys() & {first, then}:
            continue
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
