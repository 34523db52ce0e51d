"""Statements that change a table as a whole: REPLACE TABLE, TRUNCATE, DELETE without a key.

Each is one commit of the base, all or nothing, and keeps the table: its key, shards, checkpoints
and consumers. Like a load they bypass the log: change feeds of the table stop, and say why.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

import weir
from weir.errors import InvalidInput, NotAWeirTable, SchemaMismatch
from weir.format.schema import no_rows
from weir.format.sharding import Identity, Value
from weir.lake.expressions import filter_mask
from weir.lake.literals import is_one_of, quoted
from weir.routing.core import Core
from weir.shard.request_builder import check_choice
from weir.spark.clauses import spec_of, statement_of
from weir.spark.describing import marked_schema
from weir.spark.making import TableSpec, merge_columns
from weir.spark.overwrite import overwrite
from weir.spark.places import Place, resolved
from weir.spark.pushdown import as_sql
from weir.spark.source import check_times
from weir.spark.staging import Staged
from weir.spark.types import arrow_schema, require_castable
from weir.upkeep.loads import delete_matching

Options = Mapping[str, str]


def _moment(text: str) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(text))


_CONDITIONS: Final = (
    "comparisons of a column with a value, IN, IS NULL and LIKE 'x%', joined by AND"
)
_PREDICATES: Final = {
    "=": datasource.EqualTo,
    "<=>": datasource.EqualNullSafe,
    ">": datasource.GreaterThan,
    ">=": datasource.GreaterThanOrEqual,
    "<": datasource.LessThan,
    "<=": datasource.LessThanOrEqual,
    "IN": datasource.In,
    "IS_NULL": datasource.IsNull,
    "IS_NOT_NULL": datasource.IsNotNull,
    "STARTS_WITH": datasource.StringStartsWith,
}
"""The JVM's names of the conditions that a filter for Lance may be."""
_KINDS: Final[dict[str, Callable[[str], Any]]] = {
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "boolean": lambda text: text == "true",
    "string": str,
    "double": float,
    "decimal": Decimal,
    "date": lambda text: dt.date(1970, 1, 1) + dt.timedelta(days=int(text)),
    "timestamp": _moment,
    "timestamp_ntz": lambda text: _moment(text).replace(tzinfo=None),
}
"""Spark's types of values in a condition, and how the text of one is read."""


def check(options: Options) -> StructType:
    """The table that the statement replaces; empty if there is none. Writes nothing.

    `InvalidInput` or `SchemaMismatch` when the statement asks for another key, other shards or
    other columns than the table has: those are kept, and it may only add columns.
    """
    place = Place.of(options)
    try:
        table = place.current()
    except NotAWeirTable:
        return StructType([])
    given, schema = statement_of(place, options)
    spec_of(options, given, schema.fieldNames()).require_same(table)
    _require_reachable(table, schema)
    return marked_schema(table)


def _require_reachable(table: weir.Table, schema: StructType) -> None:
    """`SchemaMismatch` unless adding columns makes the table's columns those of `schema`."""
    columns = table.schema
    given = {resolved(f.name, columns.names): f.type for f in arrow_schema(schema)}
    for name in columns.names:
        if name not in given:
            raise SchemaMismatch(
                f"{table.uri} has the column {name!r}, which the new rows lack, and a table that is"
                f" replaced keeps its columns: add NULL AS {name} to the query, or DROP TABLE"
                " first. Nothing was changed"
            )
        require_castable(name, given[name], columns.field(name).type)


def truncate(options: Options) -> StructType:
    """Remove all rows; if the request has columns, first add those that the table lacks."""
    table = Place.of(options).current()
    _refuse_id(table, options)
    if "weir.schema" in options:
        schema = StructType.fromJson(json.loads(options["weir.schema"]))
        merge_columns(table, schema, {"mergeschema": "true"}, delete_column=None)
    overwrite(table.core, {}, uuid.uuid4().hex)
    return StructType([])


def delete(options: Options) -> StructType:
    """Delete the rows of an append-only table for which all conditions of the request hold."""
    table = Place.of(options).current()
    if table.primary_key:
        raise InvalidInput(
            f"{table.uri} was given a primary key meanwhile: run the statement again"
        )
    _refuse_id(table, options)
    condition = condition_of(options["weir.filters"], table)
    if condition is None:
        return truncate({**options})
    delete_matching(table.core, condition, job_id=uuid.uuid4().hex)
    return StructType([])


def condition_of(filters: str, table: weir.Table) -> str | None:
    """Conditions as the JVM sends them, for Lance; None: there is none, so all rows are meant."""
    return " AND ".join(f"({_sql(one, table)})" for one in json.loads(filters)) or None


def names_rows(options: Options) -> bool:
    """Whether an overwrite says which rows it replaces."""
    conditions = options.get("weir.where", "[]")
    return is_dynamic(options) or "replacewhere" in options or conditions != "[]"


def is_dynamic(options: Options) -> bool:
    """Whether an overwrite replaces the rows of those values that it brings."""
    mode = options.get("partitionoverwritemode", "static").lower()
    check_choice(mode, ("static", "dynamic"), "option partitionOverwriteMode")
    return mode == "dynamic"


@dataclass(frozen=True)
class Replaced:
    """The rows that an overwrite replaces: all, those that a filter names, or those that have one
    of the values which it brings in the column that shards the table."""

    where: str | None = None
    by_value: bool = False

    @staticmethod
    def of(table: weir.Table, options: Options) -> Replaced:
        """What the options say; `InvalidInput` for a filter that Lance cannot evaluate."""
        where = options.get("replacewhere")
        by_value = is_dynamic(options)
        if where is not None and by_value:
            raise InvalidInput(
                "options replaceWhere and partitionOverwriteMode=dynamic both say which rows to"
                " replace: give one of them"
            )
        if where is not None:
            check_times(where, table.schema, None)
            filter_mask(where, no_rows(table.schema))
        elif "weir.where" in options:
            where = condition_of(options["weir.where"], table)
        if by_value:
            _column_of_values(table.core)
        return Replaced(where, by_value)

    def by(self, core: Core, staged: Mapping[Value, Sequence[Staged]], job: str) -> None:
        """Replace them by the staged rows, in one commit."""
        if not self.by_value:
            overwrite(core, staged, job, where=self.where)
        elif staged:
            overwrite(core, staged, job, where=_filter_of_values(core, list(staged)))


def _column_of_values(core: Core) -> str:
    sharding = core.record.sharding
    if isinstance(sharding, Identity):
        return sharding.column
    raise InvalidInput(
        f"{core.uri} is sharded by {sharding}: a dynamic overwrite replaces those values of the"
        " column of PARTITIONED BY that its rows have. Name the rows to replace instead: the option"
        " replaceWhere, in SQL INSERT INTO t REPLACE WHERE condition SELECT ..."
    )


def _filter_of_values(core: Core, values: Sequence[Value]) -> str:
    column = _column_of_values(core)
    dtype = core.schema().plain.field(column).type
    given = [value for value in values if value is not None]
    parts = [is_one_of(column, pa.array(given, dtype))] if given else []
    if len(given) < len(values):
        parts.append(f"{quoted(column)} IS NULL")
    return " OR ".join(parts)


def _refuse_id(table: weir.Table, options: Options) -> None:
    if "statementid" in options:
        raise InvalidInput(
            f"{table.uri}: option statementId has no effect on a DELETE that is one commit: leave"
            " it out. Run again, it deletes the rows that match then"
        )


def _sql(told: list[Any], table: weir.Table) -> str:
    """One condition for Lance, exactly as Spark means it; `InvalidInput` for any other."""
    said, *more = told
    filter = _filter(*more) if more else None
    text = None if filter is None else as_sql(filter, table.schema)
    if text is None:
        raise InvalidInput(
            f"{table.uri}: in one commit of the base, rows can be deleted by {_CONDITIONS}; not by"
            f" {said}. Use such a condition, or write the rows that stay: INSERT OVERWRITE t WITH"
            " ('overwrite' = 'true') SELECT ..."
        )
    return text


def _filter(name: str, column: list[str], values: list[list[str]]) -> datasource.Filter | None:
    """The condition as Spark has it in Python; None for one that Python has not."""
    kind: Any = _PREDICATES.get(name)
    if kind is None:
        return None
    try:
        read = [_KINDS[type_.partition("(")[0]](text) for type_, text in values]
    except (KeyError, OverflowError):  # NULL, another type, a year that Python does not have
        return None
    given = [tuple(read)] if kind is datasource.In else read
    found = kind(tuple(column), *given)
    assert isinstance(found, datasource.Filter), "Spark's classes have these names on both sides"
    return found


def key_of_stream(options: Options) -> StructType:
    """Give the table that `toTable` has just made the key that its stream asks for.

    Spark makes it without the options of the stream. What they do not say stays as it was made. A
    table that anybody has used stays as it is: the write then says that it has no key.
    """
    place = Place.of(options)
    table = place.current()
    spec = TableSpec.of(options, table.schema.names)
    if not spec.primary_key or table.primary_key or not _is_untouched(table):
        return marked_schema(table)
    columns = pa.schema([pa.field(f.name, f.type) for f in table.schema])
    spec = replace(
        spec,
        sharding=spec.sharding or table.sharding,
        wal_uri=spec.wal_uri or table.wal_uri,
        writer_defaults=spec.writer_defaults or table.writer_defaults,
    )
    weir.drop(table.uri, storage_options=dict(place.storage))
    place.forget()
    return marked_schema(spec.create(place, columns))


def _is_untouched(table: weir.Table) -> bool:
    """True when nothing was ever written to the table, and nothing holds it."""
    core = table.core
    base = core.base()
    if table.checkpoints() or base.rows or base.expire is not None or core.record.former:
        return False
    return not any(core.log(shard).tip() for shard in core.shard_ids())
