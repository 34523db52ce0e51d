"""Facts read from the program itself: options, events, records, names. No list is kept by hand."""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
from msgspec import structs

import weir
import weir.spark
from tests.docs.blocks import ROOT
from weir.env import SYSTEM
from weir.format.paths import log_folder
from weir.lake.schemas import KEY_POSITION
from weir.log.site import ShardSite
from weir.log.wal_store import make_folder
from weir.records.apps import take_app
from weir.records.consumers import Consumer
from weir.records.holds import Holds
from weir.records.keeping import KeepRecords
from weir.records.lineage import append_lineage, read_lineage
from weir.records.statements import OpenStatement, Share, StatementRecords
from weir.records.table import TableRecords
from weir.shard.tokens import Tokens
from weir.store.local import LocalStore
from weir.types import Epoch

SOURCES = sorted((ROOT / "src/weir").rglob("*.py"))
EVENT = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
LEVELS = ("debug", "info", "warning", "error", "exception")


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Every module of the product below `folders` (by default all of them), parsed."""
    for name, tree in _parsed().items():
        if not folders or name.startswith(folders):
            yield name, tree


@cache
def _parsed() -> dict[str, ast.Module]:
    named = {path.relative_to(ROOT / "src/weir").as_posix(): path for path in SOURCES}
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in named.items()
        if not name.startswith("testing/")
    }


# -- options ---------------------------------------------------------------------------------------

VERBS = {
    "weir": (
        weir.connect,
        weir.create,
        weir.drop,
        weir.due,
        weir.enable,
        weir.exists,
        weir.open,
    ),
    "database": tuple(vars(weir.Database).values()),
    "table": tuple(vars(weir.Table).values()),
    "shard": tuple(vars(weir.Shard).values()),
    "writer": tuple(
        value
        for cls in (weir.TableWriter, *weir.ShardWriter.__mro__[:-1])
        for value in vars(cls).values()
    ),
    "ack": tuple(vars(weir.Ack).values()),
    "receipt": tuple(vars(weir.Receipt).values()),
    "tailer": tuple(vars(weir.WalTailer).values()),
    "weir.spark": tuple(getattr(weir.spark, name) for name in weir.spark.__all__),
}
"""The objects that users call, named as in the docs."""
OWN = {"env", "belongs", "schema", "pinned"}
"""Options for the simulator, or for callers inside weir."""


def options() -> Iterator[tuple[str, str, object]]:
    """Every option of a call that users make: the call, the option's name, its default."""
    for holder, verbs in VERBS.items():
        for verb in verbs:
            # `ShardWriter.open` is for callers inside weir: users call `shard.writer()`.
            if not inspect.isfunction(verb) or verb.__name__.startswith("_"):
                continue
            for parameter in inspect.signature(verb).parameters.values():
                if parameter.default is not parameter.empty and parameter.name not in OWN:
                    where = f"{holder}.{verb.__name__}"
                    yield where, parameter.name, parameter.default


def spark_options() -> set[str]:
    """Names, in lower case, that the data source looks up in Spark's options."""
    found = set()
    for _, tree in trees("spark/"):
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            called = ast.unparse(call.func)
            at = {"options.get": 0, "number": 1, "flag": 1, "names": 1}.get(called)
            if at is not None and len(call.args) > at and isinstance(call.args[at], ast.Constant):
                found.add(str(call.args[at].value).lower())
    # The JVM catalog passes options that begin with "weir." to the source; users never set them.
    return {name for name in {*found, "layout"} - {"path"} if not name.startswith("weir.")}


def error_attributes() -> set[str]:
    """The attributes of errors that a caller can read besides the message."""
    tree = dict(trees("errors.py"))["errors.py"]
    found = {cls.name: cls for cls in tree.body if isinstance(cls, ast.ClassDef)}
    names = set()
    for node in ast.walk(ast.Module(list(found.values()), [])):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            names.add(node.name)
    return {name for name in names if not name.startswith("_")}


# -- events ----------------------------------------------------------------------------------------


@cache
def messages() -> list[tuple[str, int, str, str]]:
    """Every line that weir writes to a log: module, line, level, text."""
    return [*_messages()]


def _messages() -> Iterator[tuple[str, int, str, str]]:
    for name, tree in trees():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            logger = ast.unparse(call.func.value).rpartition(".")[2]
            if logger not in ("log", "_log", "logger") or call.func.attr not in LEVELS:
                continue
            text = call.args[0] if call.args else None
            if isinstance(text, ast.Constant):
                level = "error" if call.func.attr == "exception" else call.func.attr
                yield name, call.lineno, level, str(text.value)


def events() -> dict[str, set[str]]:
    """Each event, and the levels at which it is logged."""
    found: dict[str, set[str]] = {}
    for _, _, level, text in messages():
        found.setdefault(text.split()[0], set()).add(level)
    return found


# -- records ---------------------------------------------------------------------------------------


def every_record(folder: Path) -> None:
    """Make tables below `folder` with each kind of record in `_weir/`, using every optional key."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    by_bucket = weir.Bucket("id", 1)
    table = weir.create(str(folder / "t"), schema, primary_key="id", sharding=by_bucket)
    shard = table.shards()[0]
    with shard.writer() as writer:
        writer.put_once([{"id": 1}], app="a", version=1)
    table.move_wal(str(folder / "wal"))
    table.move_wal(str(folder / "wal-2"))
    taken = table.checkpoint("durable", name="n", ttl="1d")
    table.compact()
    with shard.writer() as writer:
        writer.put([{"id": 3}])
    table.compact()  # a job with SSTables
    table.gc(min_age=0, kinds=["sstables"])
    with shard.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 2}])
    table.compact()  # a job with a log
    copy = table.clone(str(folder / "copy"), taken, wal_uri=str(folder / "wal"))
    table.clone(str(folder / "sharing"))  # which leaves a pin
    copy.restore(copy.checkpoint("all"))
    table.reshard(weir.Bucket("id", 2))
    lineage = read_lineage(copy.core.store)
    assert lineage is not None
    passed_over = structs.replace(
        lineage, replay_after={shard.id: 1}, deep=True, accepted_loss=True
    )
    append_lineage(copy.core.store, passed_over, SYSTEM.new_id())
    TableRecords(copy.core.store).update(
        lambda record: structs.replace(record, finished=(shard.id,)), SYSTEM
    )

    keyed = pa.field("id", pa.int64(), nullable=False, metadata={KEY_POSITION: b"1"})
    adopted = lance.write_dataset(pa.schema([keyed]).empty_table(), str(folder / "adopted"))
    adopted.initialize_mem_wal(unsharded=True, maintained_indexes=[])
    weir.enable(str(folder / "adopted"))
    weir.drop(weir.create(str(folder / "dropped"), schema, sharding=weir.PerWriter()).uri)

    store = LocalStore(table.uri)
    holds = Holds(store)
    holds.end(holds.find("before-reshard"))
    consumer = Consumer(store, "c", 60.0)
    consumer.register({shard.id: 1}, SYSTEM.new_id(), 2)
    consumer.save(
        {shard.id: 1}, within={shard.id: 1}, expired_through=1.0, snapshot=SYSTEM.new_id(), load=2
    )
    (held,) = holds.all("consumers")
    assert holds.end(held, "expired")
    take_app(store, "a", "query")
    kept = KeepRecords(store, SYSTEM)
    kept.succeeded("compact", 1.0)
    kept.waits("gc", 1.0, "another has it")
    kept.failed("gc", 2.0, "no route")
    kept.damaged("torn")
    share = Share(app="a", shard=shard.id, value=0, pieces=(("_weir/staging/j/1.arrow",),))
    statements = StatementRecords(store, SYSTEM)
    for name in ("first", "second"):
        draft = OpenStatement(
            id=SYSTEM.new_id(),
            number=0,
            table=table.core.record.table_id,
            shares=(share,),
            name=name,
        )
        proposed = statements.propose(draft)
        assert proposed is not None
        assert statements.decide(proposed, staged_since=1e12)
        if name == "first":
            statements.close(proposed)
    site = ShardSite(store, store, shard.id, SYSTEM)
    Tokens(site).announce("a", 2, ["0a0b0c0d_gen_1"], epoch=Epoch(1))
    make_folder(LocalStore(str(folder / "other")), log_folder(shard.id, shard.id), table.uri)


def folders() -> set[str]:
    """Folders below `_weir/` (of a shard: below `_weir/shards/{shard}/`) that any module names."""
    found = set()
    for path in SOURCES:
        text = (
            path.read_text(encoding="utf-8")
            .replace("{WEIR}", "_weir")
            .replace("{paths.WEIR}", "_weir")
        )
        found.update(re.findall(r"_weir/(shards/\{shard\}/\w+|(?!shards)\w+)", text))
    return found


def record_keys(folder: Path) -> dict[str, set[str]]:
    """Keys by kind of record, spelt as the docs do, of every JSON object below `folder`."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        kind = kind_of(path)
        if kind is not None:
            raw = json.loads(path.read_bytes())
            found.setdefault(kind, set()).update(keys_in(raw))
            for cut in cuts_in(raw):
                found.setdefault("cut", set()).update(keys_in(cut))
    return found


def is_cut(value: Any) -> bool:
    """True for a `ShardCut`, which the page describes in a section of its own."""
    return isinstance(value, dict) and {"manifest_version", "wal_through"} <= value.keys()


def cuts_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every cut in a record, at any depth."""
    if is_cut(value):
        yield value
    elif isinstance(value, str) and value.startswith("{"):
        yield from cuts_in(json.loads(value))
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from cuts_in(each)


def kind_of(path: Path) -> str | None:
    """The folder of a record as the docs name it, or None when the object is no record."""
    name = path.as_posix()
    if not path.is_file() or not (name.endswith(".json") or "/load-" in name):
        return None
    if name.endswith("weir_owner.json"):
        return "{table}-{n}/weir_owner.json"
    if "/_weir/" not in name:
        return None
    inside = "_weir/" + name.rpartition("/_weir/")[2]
    inside = re.sub(r"/\d{20}\.json$", "", inside)
    inside = re.sub(r"(checkpoints)/[^/]+$", r"\1/{id}", inside)
    inside = re.sub(r"(consumers)/[^/]+$", r"\1/{name}", inside)
    inside = re.sub(r"(shards)/[^/]+", r"\1/{shard}", inside)
    inside = re.sub(r"(tokens)/[^/]+/load-.*$", r"\1/{app}/load-{id}", inside)
    return re.sub(r"(apps)/[^/]+$", r"\1/{app}.json", inside)


def keys_in(value: Any, at: str = "") -> Iterator[str]:
    """`a`, `a.b`, `a[].b`, `a.{shard}.b`; nested records with their own section are skipped."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict) and not is_cut(each):
                yield from keys_in(each, f"{at}[]")
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        name = f"{at}.{_generic(key)}" if at else _generic(key)
        if not (name.endswith("}") and isinstance(each, dict)):
            yield name
        if name not in ("writer_defaults", "probe") and not is_cut(each):
            yield from keys_in(each, name)


def _generic(key: str) -> str:
    try:
        UUID(key)
    except ValueError:
        return "{app}" if re.fullmatch(r"[0-9a-f]{32}", key) else key
    return "{shard}" if "-" in key else "{app}"


# -- names -----------------------------------------------------------------------------------------


def resolves(dotted: str) -> bool:
    """True if `weir.a.b` is a module, or an attribute reachable from one."""
    return _resolve(dotted) is not None


def _resolve(dotted: str) -> object | None:
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            annotated = part in getattr(found, "__annotations__", {})
            found = getattr(found, part, part if annotated else None)
            if found is None:
                return None
        return found
    return None
