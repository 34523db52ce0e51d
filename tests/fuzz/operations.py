"""Every operation of a history: when it makes sense, what it calls, what it does to the model.

To add a verb, write a function with `@operation`. It draws its arguments from `rng` alone, calls
the verb, and applies the effect to `place.now`; `World.check` does the rest after every operation.
An error that the function does not expect is a failure of the history.
"""

import datetime as dt
import pickle
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa

import weir
from tests.fuzz.model import EXPIRES_AFTER, KEYS, Kind, Model, Row, Rows, draw_row
from tests.fuzz.world import MismatchError, Place, World, as_arrow, require_equal
from tests.support.dying import Life
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    KeyConflict,
    PartialWrite,
    SealedShard,
    WeirError,
    WriterClosed,
)
from weir.records.lineage import read_lineage
from weir.routing.shards import require_folded

Run = Callable[[World, Place, random.Random], None]
ENDED = (FencedError, WriterClosed, SealedShard, PartialWrite)
PLACES = 3
CHECKPOINTS = 4
DEEPEST_DEATH = 40


@dataclass(frozen=True)
class Operation:
    name: str
    weight: int
    is_ready: Callable[[World, Place], bool]
    run: Run


OPERATIONS: dict[str, Operation] = {}


def operation(
    weight: int = 2, *, when: Callable[[World, Place], bool] = lambda _w, _p: True
) -> Callable[[Run], Run]:
    """Add the function to the operations; `weight` is how often it is drawn."""

    def add(run: Run) -> Run:
        name = run.__name__.removeprefix("_")
        OPERATIONS[name] = Operation(name, weight, when, run)
        return run

    return add


def is_keyed(_: World, place: Place) -> bool:
    return place.kind.keyed


def is_per_writer(_: World, place: Place) -> bool:
    return place.kind.silent_after is not None


def is_routed(_: World, place: Place) -> bool:
    return place.kind.silent_after is None


def has_checkpoint(_: World, place: Place) -> bool:
    return bool(place.model.checkpoints)


def draw_rows(place: Place, rng: random.Random, count: int = 0) -> list[Row]:
    """Rows with distinct keys."""
    keys = rng.sample(range(KEYS), count or rng.randrange(1, 6))
    return [draw_row(rng, key, place.now.columns) for key in keys]


# -- writes --------------------------------------------------------------------------------------


def write(place: Place, rng: random.Random, rows: list[Row], put: Callable[[Any], Any]) -> None:
    """Put rows through the open writer. If it was fenced, put what it hands back with a new one."""
    try:
        writer = place.open_writer(rng)
        put(writer)
        writer.flush_wal()  # a put that need not be durable is told here that it was fenced
    except ENDED as error:
        if not place.is_stale:
            raise
        back = handed_back(error)
        place.close_writer()
        left = [row for row in rows if row["id"] in back]
        if left:
            place.open_writer(rng).put(left)
    place.now.put(rows)


def handed_back(error: WeirError) -> set[int]:
    """The keys of rows that an error calls not written."""
    if error.perhaps_written:
        raise MismatchError("a healthy store leaves no outcome unknown") from error
    return {row["id"] for batch in error.not_written for row in batch.to_pylist()}


@operation(12)
def put(_: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    table = place.handles[0]
    form = rng.choice([lambda: rows, lambda: iter(rows), lambda: as_arrow(rows, table)])
    write(place, rng, rows, lambda writer: writer.put(form()))


@operation(4)
def put_without_waiting(_: World, place: Place, rng: random.Random) -> None:
    parts = [draw_rows(place, rng) for _ in range(3)]
    place.close_writer()
    writer = place.open_writer(rng)
    receipts = [writer.put(rows, wait=False) for rows in parts]
    for receipt in receipts:
        receipt.wait()
    for rows in parts:
        place.now.put(rows)


@operation(3, when=is_routed)
def put_through_one_shard(_: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng, 1)
    table = place.handle(rng)
    table.refresh()  # another handle may have resharded
    place.is_stale = True
    config = weir.WriterConfig(enable_memtable=place.kind.memtable)
    with table.shard_of(rows[0]).writer(config) as writer:
        writer.put(rows)
    place.now.put(rows)


@operation(5, when=is_keyed)
def delete(_: World, place: Place, rng: random.Random) -> None:
    ids = rng.sample(range(KEYS), rng.randrange(1, 4))
    try:
        writer = place.open_writer(rng)
        writer.delete(ids)
        writer.flush_wal()
    except ENDED:
        if not place.is_stale:
            raise
        place.close_writer()
        place.open_writer(rng).delete(ids)
    place.now.delete(ids)


@operation(3)
def put_once(world: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    app = world.new_name()
    fresh_writer(place, rng)
    assert place.open_writer(rng).put_once(rows, app=app, version=1)
    assert not place.open_writer(rng).put_once(rows, app=app, version=1)
    place.now.put(rows)


@operation(2)
def write_in_another_process(world: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    ids = [rng.randrange(KEYS)] if place.kind.keyed else []
    world.elsewhere(place.handle(rng), rows, ids)
    place.is_stale = True
    place.now.put(rows)
    place.now.delete(ids)


@operation(6, when=is_per_writer)
def append_beside(_: World, place: Place, rng: random.Random) -> None:
    """Another writer has a shard of its own: it ends none. It closes, or is left as a killed one
    leaves it."""
    rows = draw_rows(place, rng)
    place.open_writer(rng).put(rows[:1])
    beside = place.handle(rng).writer(weir.WriterConfig(enable_memtable=place.kind.memtable))
    beside.put(rows[1:])
    place.open_writer(rng).put(rows[:1])
    if rng.random() < 0.5:
        beside.close()
    else:
        place.left.append(beside)
    place.now.put([*rows, *rows[:1]])


@operation(2)
def reopen(_: World, place: Place, rng: random.Random) -> None:
    place.close_writer()
    place.open_writer(rng)


@operation(3)
def flush(_: World, place: Place, rng: random.Random) -> None:
    writer = fresh_writer(place, rng, memtable=True)
    writer.flush()


def fresh_writer(place: Place, rng: random.Random, *, memtable: bool | None = None) -> Any:
    """A writer that nobody has fenced."""
    if place.is_stale:
        place.close_writer()
    return place.open_writer(rng, memtable=memtable)


# -- writes that look first ----------------------------------------------------------------------


def looking_writer(place: Place, rng: random.Random) -> Any:
    """A writer for verbs that look first, which need a compaction after a reshard without one."""
    core = weir.open(place.uri).core
    try:
        require_folded(core, core.record.routing_version)
    except CommitConflict:
        place.handle(rng).compact(lease=0)
    return fresh_writer(place, rng, memtable=True)


@operation(3, when=is_keyed)
def insert(_: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    writer = looking_writer(place, rng)
    new = [row for row in rows if row["id"] not in place.now.ids]
    if rng.random() < 0.5:
        counts = writer.insert(rows, on_conflict="skip")
        assert (counts.inserted, counts.skipped) == (len(new), len(rows) - len(new)), counts
        place.now.put(new)
        return
    try:
        writer.insert(rows)
        assert len(new) == len(rows), "keys that exist were inserted"
        place.now.put(rows)
    except (KeyConflict, PartialWrite) as error:
        if len(new) == len(rows):
            raise
        back = handed_back(error)
        place.now.put([row for row in rows if row["id"] not in back])


@operation(3, when=is_keyed)
def update(_: World, place: Place, rng: random.Random) -> None:
    ids = rng.sample(range(KEYS), rng.randrange(1, 5))
    rows: list[Row] = [{"id": key, "n": rng.randrange(10)} for key in ids]
    missing = rng.choice(["skip", "insert"])
    writer = looking_writer(place, rng)
    counts = writer.update(rng.choice([rows, iter(rows)]), missing=missing)
    known = len(place.now.ids & set(ids))
    new = (len(ids) - known, 0) if missing == "insert" else (0, len(ids) - known)
    assert (counts.updated, (counts.inserted, counts.skipped)) == (known, new), counts
    for row in rows:
        old = place.now.by_id(row["id"])
        if old is not None or missing == "insert":
            place.now.put([{**(old or {}), **row}])


@operation(3, when=is_keyed)
def put_when(_: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    writer = looking_writer(place, rng)
    if rng.random() < 0.5:
        writer.put(rows, when="current IS NULL")
        place.now.put([row for row in rows if row["id"] not in place.now.ids])
        return
    counts = writer.put(rows, when="incoming.n > current.n")

    def wins(row: Row) -> bool:
        old = place.now.by_id(row["id"])
        return None not in (row["n"], old and old["n"]) and row["n"] > old["n"]  # type: ignore[index]

    won = [row for row in rows if wins(row)]
    assert (counts.updated, counts.skipped) == (len(won), len(rows) - len(won)), counts
    place.now.put(won)


@operation(2, when=is_keyed)
def update_where(_: World, place: Place, rng: random.Random) -> None:
    at = rng.randrange(10)
    writer = looking_writer(place, rng)
    counts = writer.update_where(f"n >= {at}", {"n": "n - 1"})

    def is_meant(row: Row) -> bool:
        return row["n"] is not None and row["n"] >= at

    assert counts.updated == sum(map(is_meant, place.now.rows)), counts
    place.now.change(is_meant, lambda row: {"n": row["n"] - 1})


@operation(2, when=is_keyed)
def delete_where(_: World, place: Place, rng: random.Random) -> None:
    at = rng.randrange(5, 10)
    writer = looking_writer(place, rng)
    counts = writer.delete_where(f"n >= {at}")
    gone = [row["id"] for row in place.now.rows if (row["n"] or 0) >= at]
    assert counts.deleted == len(gone), counts
    place.now.delete(gone)


# -- handles -------------------------------------------------------------------------------------


@operation(2)
def open_again(_: World, place: Place, rng: random.Random) -> None:
    place.add_handle(weir.open(place.uri))


@operation(1)
def pickle_handle(_: World, place: Place, rng: random.Random) -> None:
    place.add_handle(pickle.loads(pickle.dumps(place.handle(rng))))


@operation(1, when=lambda w, p: not w.shares_files(p) and p.parent is None)
def drop_and_create(world: World, place: Place, rng: random.Random) -> None:
    place.is_stale = True
    if rng.random() < 0.5:
        place.close_writer()
    weir.drop(place.uri)
    if place.writer is not None:
        rows = draw_rows(place, rng, 1)
        try:
            place.writer.put(rows, wait=True)
        except WeirError:
            pass
        else:
            raise AssertionError("a writer of a dropped table acknowledged a put")
        with suppress(WeirError):
            place.writer.close()
    world.forget(place)
    world.create(Kind.drawn(rng), place.name)


# -- upkeep --------------------------------------------------------------------------------------


def compact_options(rng: random.Random) -> dict[str, Any]:
    return {
        "fold_wal": rng.choice([None, None, True, False]),
        "cluster": rng.random() < 0.3,
        "indexes": rng.random() < 0.7,
        "rewrite": rng.choice([None, True, False]),
        "lease": 0,
    }


@operation(8)
def compact(_: World, place: Place, rng: random.Random) -> None:
    options = compact_options(rng)
    if options["fold_wal"]:
        place.is_stale = True  # it ends writers with a MemTable
    place.handle(rng).compact(**options)


@operation(6)
def gc(_: World, place: Place, rng: random.Random) -> None:
    report = place.handle(rng).gc(min_age=0)
    assert not report.errors, report.errors


@operation(4, when=lambda _, p: len(p.model.checkpoints) < CHECKPOINTS)
def checkpoint(_: World, place: Place, rng: random.Random) -> None:
    scope = rng.choice(["durable", "all"])
    if scope == "all":
        place.is_stale = True  # another handle's flush claims the shard
        if not place.kind.memtable:
            place.close_writer()  # one without a MemTable refuses to be flushed
    made = place.handle(rng).checkpoint(scope, name=rng.choice([None, "name"]))
    place.model.checkpoints[made.id] = place.now.copy()


@operation(2, when=has_checkpoint)
def delete_checkpoint(_: World, place: Place, rng: random.Random) -> None:
    gone = rng.choice(sorted(place.model.checkpoints))
    place.handle(rng).delete_checkpoint(gone)
    del place.model.checkpoints[gone]


@operation(1, when=has_checkpoint)
def refresh_checkpoint(_: World, place: Place, rng: random.Random) -> None:
    place.handle(rng).refresh_checkpoint(rng.choice(sorted(place.model.checkpoints)), ttl="1h")


def draw_moment(place: Place, rng: random.Random) -> tuple[UUID | None, Rows]:
    """A checkpoint, or now."""
    ids = [None, *sorted(place.model.checkpoints)]
    chosen = rng.choice(ids)
    return chosen, place.now if chosen is None else place.model.checkpoints[chosen]


@operation(4, when=lambda w, _: len(w.places) < PLACES)
def clone(world: World, place: Place, rng: random.Random) -> None:
    chosen, rows = draw_moment(place, rng)
    name = world.new_name()
    wal = str(world.folder / f"{name}-wal") if rng.random() < 0.3 else None
    deep = rng.random() < 0.4
    options: dict[str, Any] = {"wal_uri": wal, "deep": deep}
    if deep and place.parent is not None:
        with suppress(InvalidInput):  # a clone that shares files cannot be copied deeply
            made = place.handle(rng).clone(world.uri_of(name), chosen, **options)
            add_clone(world, place, name, made, rows, deep=deep)
        return
    made = place.handle(rng).clone(world.uri_of(name), chosen, **options)
    add_clone(world, place, name, made, rows, deep=deep)


def add_clone(
    world: World, place: Place, name: str, made: weir.Table, rows: Rows, *, deep: bool
) -> None:
    world.tell(f"{name}: a clone of {place.name}, deep={deep}")
    parent = None if deep else place
    copied = Model(replace(rows.copy(), routing=0))
    added = Place(name, world.uri_of(name), copied, [made], parent, is_clone=True)
    added.indexed = place.indexed
    added.begin_feed(made)
    world.places.append(added)


@operation(2, when=lambda w, p: p.parent is not None and not w.shares_files(p))
def lose_and_release_clone(world: World, place: Place, rng: random.Random) -> None:
    """Somebody deletes a clone with a file manager; its parent lets go of it."""
    place.close_writer()
    shutil.rmtree(place.uri)
    assert place.parent is not None
    parent = place.parent.handle(rng)
    if any(made.owner == place.uri for made in parent.checkpoints()):  # else it shared nothing
        parent.release_clone(place.uri)
    world.forget(place)


@operation(1, when=lambda w, p: p.parent is not None and not w.shares_files(p))
def drop_clone(world: World, place: Place, rng: random.Random) -> None:
    place.close_writer()
    weir.drop(place.uri)
    world.forget(place)


@operation(3, when=has_checkpoint)
def restore(_: World, place: Place, rng: random.Random) -> None:
    chosen = rng.choice(sorted(place.model.checkpoints))
    rows = place.model.checkpoints[chosen]
    table = place.handle(rng)
    if rows.routing != place.now.routing:
        try:
            table.restore(chosen)
        except InvalidInput:
            return
        raise AssertionError("a restore over a reshard was not refused")
    restored(place, table.restore(chosen), rows)


def restored(place: Place, report: Any, rows: Rows) -> None:
    """The effect of a restore."""
    place.is_stale = True
    place.model.checkpoints[report.undo.id] = place.now.copy()
    place.model.now = rows.copy()
    place.begin_feed(place.handles[0])  # a restore is in no feed
    place.close_writer()


@operation(1, when=is_per_writer)
def reshard_refused(_: World, place: Place, rng: random.Random) -> None:
    try:
        place.handle(rng).reshard(rng.choice([weir.Bucket("id", 2), weir.Unsharded()]))
    except InvalidInput:
        return
    raise AssertionError("a reshard of shards that have each a writer was not refused")


@operation(3, when=is_routed)
def reshard(_: World, place: Place, rng: random.Random) -> None:
    shards = rng.choice([1, 2, 3])
    sharding = weir.Bucket("id", shards) if shards > 1 else weir.Unsharded()
    table = place.handle(rng)
    table.reshard(sharding, compact=rng.random() < 0.5)
    resharded(place)


def resharded(place: Place) -> None:
    """The effect of a reshard, which may have found the routing as it was wanted."""
    place.now.routing = weir.open(place.uri).core.record.routing_version
    place.is_stale = True


@operation(2)
def move_wal(world: World, place: Place, rng: random.Random) -> None:
    target = rng.choice([None, str(world.folder / f"{place.name}-{world.new_name()}-wal")])
    place.handle(rng).move_wal(target)
    place.is_stale = True


@operation(1)
def set_expire(_: World, place: Place, rng: random.Random) -> None:
    expires = not place.now.expires
    if not expires and place.now.hidden:
        return  # rows that compaction has not dropped yet would come back
    place.handle(rng).set_expire(weir.Expire("at", EXPIRES_AFTER) if expires else None)
    place.now.set_expiry(expires=expires)
    place.begin_feed(place.handles[0])


# -- upkeep that dies ----------------------------------------------------------------------------


def die(place: Place, rng: random.Random, run: Callable[[weir.Table], Any]) -> Any:
    """Run upkeep in a process that dies before or after one of its writes; None if it did."""
    life = Life(rng.randrange(1, DEEPEST_DEATH), rng.choice(["before", "after"]))
    table = life.table(weir.open(place.uri))
    place.is_stale = True
    try:
        done = run(table)
    except Exception:
        if not life.dead:
            raise
        return None
    return None if life.dead else done


@operation(4)
def compact_and_die(_: World, place: Place, rng: random.Random) -> None:
    options = compact_options(rng)
    die(place, rng, lambda table: table.compact(**options))


@operation(3)
def gc_and_die(_: World, place: Place, rng: random.Random) -> None:
    die(place, rng, lambda table: table.gc(min_age=0))


@operation(3, when=lambda _, p: len(p.model.checkpoints) < CHECKPOINTS)
def checkpoint_and_die(_: World, place: Place, rng: random.Random) -> None:
    scope = rng.choice(["durable", "all"])
    before = {one.id for one in place.handles[0].checkpoints()}
    die(place, rng, lambda table: table.checkpoint(scope))
    for one in place.handles[0].checkpoints():
        if one.id not in before and one.owner is None:
            place.model.checkpoints[one.id] = place.now.copy()


@operation(2, when=has_checkpoint)
def restore_and_die(_: World, place: Place, rng: random.Random) -> None:
    ids = [i for i, rows in place.model.checkpoints.items() if rows.routing == place.now.routing]
    if not ids:
        return
    chosen = rng.choice(sorted(ids))
    rows = place.model.checkpoints[chosen]
    store = place.handles[0].core.store
    before = read_lineage(store)
    report = die(place, rng, lambda table: table.restore(chosen))
    if report is None:  # a restore that died is run again
        after = read_lineage(store)
        if after is not None and after != before and after.state == "ready":
            place.model.now = rows.copy()  # it died when all was done: the next one begins there
        report = place.handle(rng).restore(chosen)
    restored(place, report, rows)


@operation(2, when=is_routed)
def reshard_and_die(_: World, place: Place, rng: random.Random) -> None:
    shards = rng.choice([2, 3])
    run = lambda table: table.reshard(weir.Bucket("id", shards))  # noqa: E731
    if die(place, rng, run) is None:
        with suppress(CommitConflict):  # the dead one's claim on compaction
            weir.open(place.uri).reshard(weir.Bucket("id", shards))
        place.handle(rng).compact(lease=0)
        weir.open(place.uri).reshard(weir.Bucket("id", shards))
    resharded(place)


@operation(2)
def move_wal_and_die(world: World, place: Place, rng: random.Random) -> None:
    target = rng.choice([None, str(world.folder / f"{place.name}-{world.new_name()}-wal")])
    if die(place, rng, lambda table: table.move_wal(target)) is None:
        place.handle(rng).move_wal(target)


@operation(2, when=lambda w, p: len(w.places) < PLACES and p.parent is None)
def clone_and_die(world: World, place: Place, rng: random.Random) -> None:
    chosen, rows = draw_moment(place, rng)
    name, deep = world.new_name(), rng.random() < 0.4
    run = lambda table: table.clone(world.uri_of(name), chosen, deep=deep)  # noqa: E731
    made = die(place, rng, run)
    if made is None and rng.random() < 0.3 and not weir.exists(world.uri_of(name)):
        with suppress(InvalidInput):  # nothing was begun
            place.handle(rng).discard_clone(world.uri_of(name))
        return
    made = run(place.handle(rng)) if made is None else weir.open(world.uri_of(name))
    add_clone(world, place, name, made, rows, deep=deep)


# -- columns, indexes, consumers -------------------------------------------------------------------


def added_columns(place: Place) -> list[str]:
    return [name for name in place.now.columns if name.startswith("t")]


@operation(1, when=lambda _, p: len(p.now.columns) < 7)
def add_columns(world: World, place: Place, rng: random.Random) -> None:
    name = world.new_name()
    place.close_writer()  # it would go on with the columns it knows
    if place.kind.keyed and rng.random() < 0.5:
        place.handle(rng).add_columns({name: "id + 1"})
        place.now.add_column(name)
        place.now.change(lambda _: True, lambda row: {name: row["id"] + 1})
    else:
        place.handle(rng).add_columns(pa.schema([pa.field(name, pa.int64())]))
        place.now.add_column(name)
    place.begin_feed(place.handles[0])


@operation(1, when=lambda _, p: bool(added_columns(p)))
def rename_column(world: World, place: Place, rng: random.Random) -> None:
    old, new = rng.choice(added_columns(place)), world.new_name()
    place.close_writer()
    place.handle(rng).rename_column(old, new)
    place.now.rename_column(old, new)
    place.begin_feed(place.handles[0])


@operation(1, when=lambda _, p: bool(added_columns(p)))
def drop_columns(_: World, place: Place, rng: random.Random) -> None:
    name = rng.choice(added_columns(place))
    place.close_writer()
    place.handle(rng).drop_columns(name)
    place.now.drop_column(name)
    place.begin_feed(place.handles[0])


@operation(2)
def create_index(_: World, place: Place, rng: random.Random) -> None:
    table = place.handle(rng)
    if rng.random() < 0.5:
        table.create_fts_index("v", replace=True)
    else:
        table.create_index("n", rng.choice([None, "bitmap"]), replace=True)
    place.indexed = True


@operation(1)
def drop_index(_: World, place: Place, rng: random.Random) -> None:
    table = place.handle(rng)
    for index in table.indexes()[:1]:
        table.drop_index(index.name)


@operation(3)
def follow(_: World, place: Place, rng: random.Random) -> None:
    """A consumer from nothing has the rows of now, then every change, whoever asks for them."""
    place.flush_wal()
    if place.copy is None:
        place.copy = replace(place.now.copy(), rows=[])
    for change in place.handle(rng).follow("copy", once=True):
        place.copy.apply(change)
    require_equal(f"{place.name}: the consumer's copy", place.copy.rows, place.now.rows)


@operation(1, when=lambda _, p: p.copy is not None)
def drop_consumer(_: World, place: Place, rng: random.Random) -> None:
    place.handle(rng).drop_consumer("copy")
    place.copy = None


@operation(2)
def look(_: World, place: Place, rng: random.Random) -> None:
    """Everything that only looks, beside the reads that are compared after each operation."""
    place.flush_wal()
    table = place.handle(rng)
    counted = table.sql("SELECT count(*) AS rows FROM t").to_pylist()
    assert counted == [{"rows": len(place.now.rows)}], counted
    assert table.stats().base_version == table.snapshot().base_version
    assert {one.shard for one in table.stats().shards} >= {shard.id for shard in table.shards()}
    assert table.history(upkeep=True)
    if place.kind.keyed:
        found = table.hybrid_search({"v": "red", "vec": [1.0, 1.0]}, exact=True)
        best = found.drop_columns(["_relevance_score"]).to_pylist()
        assert all(row in place.now.rows for row in best), best


# -- other programs ------------------------------------------------------------------------------


def settled(place: Place, rng: random.Random) -> Any:
    """The base as Lance opens it, holding every row: changes by other programs touch it alone."""
    place.close_writer()
    report = place.handle(rng).compact(fold_wal=True, lease=0, rewrite=False)
    held = place.handle(rng).count(freshness="base")
    assert held == len(place.now.rows), f"the base holds {held} rows after {report}"
    return lance.dataset(place.uri)


@operation(2)
def lance_append(_: World, place: Place, rng: random.Random) -> None:
    dataset = settled(place, rng)
    rows = [row for row in draw_rows(place, rng) if row["id"] not in place.now.ids]
    rows = [row for row in rows if place.now.is_alive(row)]
    if rows:
        lance.write_dataset(as_arrow(rows, place.handles[0]), dataset, mode="append")
    place.now.put(rows)
    place.begin_feed(place.handles[0])


@operation(2, when=is_keyed)
def lance_merge_insert(_: World, place: Place, rng: random.Random) -> None:
    rows = draw_rows(place, rng)
    merge = settled(place, rng).merge_insert("id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(as_arrow(rows, place.handles[0]))
    place.now.put(rows)
    place.begin_feed(place.handles[0])


@operation(1, when=lambda _, p: p.kind.keyed and not p.now.routing)
def lancedb_merge_insert(world: World, place: Place, rng: random.Random) -> None:
    import lancedb

    if weir.open(place.uri).wal_uri is not None:
        return  # refused, as after a reshard: LanceDB cannot share such a log
    rows = draw_rows(place, rng, 1)  # a call takes rows of one bucket
    settled(place, rng)
    table = lancedb.connect(str(world.folder)).open_table(place.name)
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(as_arrow(rows, place.handles[0]))
    place.is_stale = True
    place.now.put(rows)
    place.begin_feed(place.handles[0])


@operation(1)
def lance_update(_: World, place: Place, rng: random.Random) -> None:
    at = rng.randrange(10)
    settled(place, rng).update({"n": "n - 1"}, where=f"n >= {at}")
    for row in place.now.rows:
        if row["n"] is not None and row["n"] >= at:
            row["n"] -= 1
    place.begin_feed(place.handles[0])


@operation(1)
def lance_delete(_: World, place: Place, rng: random.Random) -> None:
    at = rng.randrange(5, 10)
    settled(place, rng).delete(f"n >= {at}")
    place.now.rows = [row for row in place.now.rows if (row["n"] or 0) < at]
    place.begin_feed(place.handles[0])


# Of a clone, Lance looks for the index that it moves in the folder of the parent (F6): weir's own
# compaction does not rewrite such files, and cannot help a program that does.
@operation(2, when=lambda _, p: p.parent is None or not p.indexed)
def lance_compact_files(_: World, place: Place, rng: random.Random) -> None:
    lance.dataset(place.uri).optimize.compact_files()


@operation(2)
def lance_cleanup(_: World, place: Place, rng: random.Random) -> None:
    lance.dataset(place.uri).cleanup_old_versions(
        older_than=dt.timedelta(0), error_if_tagged_old_versions=False
    )


@operation(1)
def lance_tag(world: World, place: Place, rng: random.Random) -> None:
    dataset = lance.dataset(place.uri)
    dataset.tags.create(world.new_name(), dataset.version)


@operation(2)
def lance_create_index(_: World, place: Place, rng: random.Random) -> None:
    dataset = settled(place, rng)
    column, kind = rng.choice([("n", "BTREE"), ("n", "BITMAP"), ("v", "INVERTED")])
    if column in place.now.columns:
        dataset.create_scalar_index(column, kind, replace=True)
        place.indexed = True


@operation(1, when=lambda _, p: len(p.now.columns) < 7)
def lance_add_column(world: World, place: Place, rng: random.Random) -> None:
    name = world.new_name()
    settled(place, rng).add_columns(pa.schema([pa.field(name, pa.int64())]))
    place.now.add_column(name)
    place.begin_feed(place.handles[0])


@operation(1, when=lambda _, p: bool(added_columns(p)))
def lance_rename_column(world: World, place: Place, rng: random.Random) -> None:
    old, new = rng.choice(added_columns(place)), world.new_name()
    settled(place, rng).alter_columns({"path": old, "name": new})
    place.now.rename_column(old, new)
    place.begin_feed(place.handles[0])


@operation(1, when=lambda _, p: bool(added_columns(p)))
def lance_drop_column(_: World, place: Place, rng: random.Random) -> None:
    name = rng.choice(added_columns(place))
    settled(place, rng).drop_columns([name])
    place.now.drop_column(name)
    place.begin_feed(place.handles[0])
