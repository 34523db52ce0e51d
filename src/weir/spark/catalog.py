"""Table names for Spark's SQL: the requests of the catalog in the JVM, and the answers.

A name stands for a place, `root/namespace/name.lance`, as in `weir.connect`, so nothing needs to be
migrated. A name that contains a slash is a URI. The catalog
(`java/weir/spark/WeirCatalog.java`) knows none of this: its requests are options of the data source
that begin with "weir.", and the answer is a schema, since that is what a data source can return.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import weir
from weir.errors import InvalidInput, NotAWeirTable
from weir.making import complete
from weir.spark import procedures, replacing
from weir.spark.clauses import require_loose, spec_of, statement_of
from weir.spark.describing import marked_schema
from weir.spark.making import merge_columns
from weir.spark.options import require_changeable
from weir.spark.places import ENDING, Place, as_options, located
from weir.spark.session import is_connect
from weir.spark.snapshots import Size
from weir.spark.source import asked_snapshot, checkpoint_of, columns_at
from weir.spark.types import arrow_schema, require_storable
from weir.store.open import open_store
from weir.upkeep.drop import drop

ASK: Final = "weir.ask"
_PUSHES: Final = "spark.sql.python.filterPushdown.enabled"
_CLASS: Final = "weir.spark.WeirCatalog"

Options = Mapping[str, str]


def use(
    spark: SparkSession, catalog: str, root: str, storage_options: Mapping[str, str] | None
) -> None:
    """Make tables below `root` known to the session as `catalog.namespace.name`."""
    if not catalog.isidentifier():
        raise InvalidInput(
            f"{catalog!r} is not a valid catalog name: use letters, digits and underscores, and"
            " begin with a letter"
        )
    from weir.spark import jar

    file = jar.require()
    if is_connect(spark):
        spark.addArtifacts(str(file))
    else:
        spark.sql(f"ADD JAR '{file}'")
    prefix = f"spark.sql.catalog.{catalog}"
    known = spark.conf.get(f"{prefix}.root", None)
    if known not in (None, root):
        # Spark loads a catalog once in the life of a session.
        raise InvalidInput(
            f"this session already has a catalog {catalog!r} with the root {known}; choose another"
            " name"
        )
    for name, value in as_options(storage_options).items():
        spark.conf.set(f"{prefix}.{name}", value)
    spark.conf.set(f"{prefix}.root", root)
    spark.conf.set(_PUSHES, "true")
    spark.conf.set(prefix, _CLASS)
    # Loaded here: ADD JAR shows the jar to this thread only, and others find what is loaded.
    spark.sql(f"EXPLAIN SHOW NAMESPACES IN {catalog}")


def answer(options: Options) -> StructType:
    """Answer a request of the catalog."""
    asked = options[ASK]
    found = _ANSWERS.get(asked)
    if found is None:
        raise InvalidInput(
            f"unknown catalog request {asked!r}: the jar is from another release of weir. Build it"
            " again (`python -m weir.spark.jar`) and start a new session"
        )
    return found(options)


def _load(options: Options) -> StructType:
    try:
        table = Place.of(options).current()
    except NotAWeirTable:
        return StructType([])
    past = checkpoint_of(table, options)
    return marked_schema(table, None if past is None else columns_at(table, options))


def _tables(options: Options) -> StructType:
    place = _folder(options)
    return _names(weir.connect(place.uri, storage_options=dict(place.storage)).tables())


def _namespaces(options: Options) -> StructType:
    return _names(
        name for name in _folders(options) if not name.endswith(ENDING) and name[0] not in "._"
    )


def _folders(options: Options) -> list[str]:
    place = _folder(options)
    found, _ = open_store(place.uri, dict(place.storage)).list_folder("")
    return [folder.rstrip("/").rpartition("/")[2] for folder in found]


def _folder(options: Options) -> Place:
    return Place.at(located({**options, "weir.name": ""}), options)


def _names(found: Iterable[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in sorted(found)])


def _create(options: Options) -> StructType:
    place = Place.of(options)
    given, schema = statement_of(place, options)
    if weir.exists(place.uri, storage_options=dict(place.storage)):
        return StructType([])
    declared = "weir.declared" in options
    if declared:
        require_loose(schema)
    spec = spec_of(options, given, schema.fieldNames())
    return marked_schema(spec.create(place, arrow_schema(schema), declared=declared))


def _add(options: Options) -> StructType:
    table = Place.of(options).current()
    schema = StructType.fromJson(json.loads(options["weir.schema"]))
    require_storable(schema)
    merge_columns(table, schema, {"mergeschema": "true"}, delete_column=None)
    return marked_schema(table)


def _remove(options: Options) -> StructType:
    table = Place.of(options).current()
    table.drop_columns(StructType.fromJson(json.loads(options["weir.schema"])).fieldNames())
    return marked_schema(table)


def _rename(options: Options) -> StructType:
    table = Place.of(options).current()
    table.rename_column(options["weir.old"], options["weir.new"])
    return marked_schema(table)


def _drop(options: Options) -> StructType:
    place = Place.of(options)
    try:
        table = place.current()
    except NotAWeirTable:
        return StructType([])
    drop(table.core)
    place.forget()
    return _names(["dropped"])


def _complete(options: Options) -> StructType:
    complete(Place.of(options).current())
    return StructType([])


def _snapshot(options: Options) -> StructType:
    table = Place.of(options).current()
    command = options.get("weir.command")
    if command is not None:
        require_changeable(table, options, command)
    taken = asked_snapshot(table, options)
    told: dict[str, object] = {"text": taken.to_json()}
    if command is None:
        size = Size.of(table, taken.snapshot)
        told |= {"rows": size.rows, "bytes": size.bytes} | (
            {"exact": True} if size.is_exact else {}
        )
    return StructType([StructField("snapshot", StringType(), True, told)])


_ANSWERS: Final[dict[str, Callable[[Options], StructType]]] = {
    "load": _load,
    "tables": _tables,
    "namespaces": _namespaces,
    "create": _create,
    "add": _add,
    "remove": _remove,
    "rename": _rename,
    "drop": _drop,
    "complete": _complete,
    "replace": replacing.check,
    "truncate": replacing.truncate,
    "delete": replacing.delete,
    "key": replacing.key_of_stream,
    "snapshot": _snapshot,
    "arguments": procedures.arguments,
    "procedures": lambda _options: procedures.listed(),
    "call": procedures.call,
}
