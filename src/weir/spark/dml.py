"""Changes in place without SQL: merge, update and delete on executors, exactly once.

Each call reads one snapshot, computes rows in Spark and writes them back with that snapshot (P-7).
If another writer changed one of these rows in between, the call starts over, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from weir.errors import CommitConflict, InvalidInput
from weir.spark.deciding import is_done, name_of
from weir.spark.failures import unwrap_errors
from weir.spark.frames import frame_of
from weir.spark.places import Place, as_options, backquoted, resolved
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.source import parts_of
from weir.spark.types import typed_columns

ATTEMPTS: Final = 4
"""Times a change is computed while other writers keep changing the same rows."""
_DELETE: Final = "_delete"

Options = Mapping[str, str] | None
Matched = Literal["update", "ignore", "delete"]
NotMatched = Literal["insert", "ignore"]


@dataclass(frozen=True)
class ChangeReport:
    """What a change in place did."""

    rows: int
    """Rows put."""
    deleted: int
    attempts: int
    """1 if no other writer changed the same rows during the call; 0 if an earlier call with this
    `statement_id` had done it."""


def delete_where(
    spark: SparkSession,
    uri: str,
    condition: str,
    *,
    statement_id: str | None = None,
    storage_options: Options = None,
) -> ChangeReport:
    """Delete the rows for which `condition`, in Spark's SQL, is true.

    All of it, or nothing if the call dies. Given a `statement_id`, a text that no other call uses,
    the same call can be run again, within a day, and is done once. Raises `InvalidInput` for a
    table without a key, `CommitConflict` when other writers changed the same rows during each of
    four attempts.
    """

    def rows(current: DataFrame, key: Sequence[str]) -> DataFrame:
        return current.where(condition).select(*map(_column, key), F.lit(True).alias(_DELETE))

    place = Place(uri, dict(storage_options or {}))
    return _change(spark, place, rows, statement_id, keys_only=True)


def update_where(
    spark: SparkSession,
    uri: str,
    condition: str,
    values: Mapping[str, str],
    *,
    statement_id: str | None = None,
    storage_options: Options = None,
) -> ChangeReport:
    """Set columns to expressions, both in Spark's SQL, where `condition` is true.

    Key columns cannot be set. `statement_id`, and what is raised, as in `delete_where`.
    """

    def rows(current: DataFrame, key: Sequence[str]) -> DataFrame:
        chosen = current.where(condition)
        new = _expressions(values, current.columns, key)
        columns = [
            (F.expr(new[name]) if name in new else _column(name)).alias(name)
            for name in current.columns
        ]
        return chosen.select(*columns, F.lit(False).alias(_DELETE))

    return _change(spark, Place(uri, dict(storage_options or {})), rows, statement_id)


def merge(
    df: DataFrame,
    uri: str,
    *,
    matched: Matched | Mapping[str, str] = "update",
    not_matched: NotMatched = "insert",
    when: str | None = None,
    statement_id: str | None = None,
    storage_options: Options = None,
) -> ChangeReport:
    """Bring the rows of `df` into the table by its key.

    `matched` says what happens to rows whose key exists: "update" sets the columns that `df` has;
    "delete"; "ignore"; or expressions by column over `current.x` and `incoming.x`. `when` is a
    condition over both that matched rows must meet. `not_matched`: "insert" or "ignore". A key that
    occurs twice in `df` is refused. `statement_id`, and what is raised, as in `delete_where`.
    """
    if not isinstance(matched, Mapping) and matched not in ("update", "ignore", "delete"):
        raise InvalidInput(
            f"matched must be update, ignore, delete or a dict of expressions, got {matched!r}"
        )
    if not_matched not in ("insert", "ignore"):
        raise InvalidInput(f"not_matched must be insert or ignore, got {not_matched!r}")

    def rows(current: DataFrame, key: Sequence[str]) -> DataFrame:
        names = current.columns
        incoming = df.select(*(_column(c).alias(resolved(c, names)) for c in df.columns))
        extra = [c for c in incoming.columns if c not in names]
        if extra or any(name not in incoming.columns for name in key):
            raise InvalidInput(
                f"{uri}: the rows to merge must have the key columns {list(key)}, and only columns"
                f" of the table ({names}); they have {df.columns}"
            )
        left, right = incoming.alias("incoming"), current.alias("current")
        on = [F.col(f"incoming.{backquoted(k)}") == F.col(f"current.{backquoted(k)}") for k in key]
        there = F.col(f"current.{backquoted(key[0])}").isNotNull()
        joined = left.join(right, on, "left")
        keeps = there if when is None else there & F.expr(when)
        wanted = F.lit(False) if matched == "ignore" else keeps
        if not_matched == "insert":
            wanted |= ~there
        chosen = joined.where(wanted)
        return chosen.select(
            *_merged(names, key, incoming.columns, there, matched),
            (there & F.lit(matched == "delete")).alias(_DELETE),
        )

    return _change(df.sparkSession, Place(uri, dict(storage_options or {})), rows, statement_id)


def _merged(
    names: Sequence[str],
    key: Sequence[str],
    given: Sequence[str],
    there: Column,
    matched: Matched | Mapping[str, str],
) -> list[Column]:
    new = _expressions(matched, names, key) if isinstance(matched, Mapping) else None
    columns = []
    for name in names:
        theirs = F.col(f"current.{backquoted(name)}")
        ours = F.col(f"incoming.{backquoted(name)}") if name in given else F.lit(None)
        if new is not None:
            kept = F.expr(new[name]) if name in new else theirs
        else:
            kept = ours if name in given else theirs
        if name in key:
            columns.append(ours.alias(name))
        else:
            columns.append(F.when(there, kept).otherwise(ours).alias(name))
    return columns


def _expressions(
    values: Mapping[str, str], names: Sequence[str], key: Sequence[str]
) -> dict[str, str]:
    new = {resolved(name, names): text for name, text in values.items()}
    for name in new:
        if name not in names:
            raise InvalidInput(f"the table has no column {name!r}; it has {list(names)}")
        if name in key:
            raise InvalidInput(
                f"key column {name!r} cannot be set; delete the row and write a new one"
            )
    return new


def _change(
    spark: SparkSession,
    place: Place,
    rows: Callable[[DataFrame, Sequence[str]], DataFrame],
    statement_id: str | None,
    *,
    keys_only: bool = False,
) -> ChangeReport:
    """Compute and write until no other writer changed the rows in between.

    `keys_only`: no row is written back, so one may have a column that Spark has no type for.
    """
    if statement_id is not None:
        core = place.current().core
        if is_done(core, name_of(core, statement_id)):
            return ChangeReport(0, 0, 0)
    for attempt in place.current().core.env.attempts(ATTEMPTS):
        table = place.current()
        if not table.primary_key:
            raise InvalidInput(
                f"{table.uri} is append-only: merge, update and delete need a primary key"
            )
        read = RoutedSnapshot.take(table)
        columns = typed_columns(table.schema) if keys_only else None
        parts = parts_of(table, read.snapshot)
        current = frame_of(spark, place, table, parts, columns=columns)
        try:
            done = _write(spark, place, rows(current, table.primary_key), read, statement_id)
        except CommitConflict:
            if attempt == ATTEMPTS:
                raise
        else:
            return ChangeReport(*done, attempt)
    raise AssertionError("the loop above returns or raises")


def _write(
    spark: SparkSession,
    place: Place,
    changed: DataFrame,
    read: RoutedSnapshot,
    statement_id: str | None,
) -> tuple[int, int]:
    spark.createDataFrame([], "nothing int")  # makes the session active in this thread
    seen = Observation()
    deletes = F.sum(F.col(_DELETE).cast("long"))
    counted = changed.observe(seen, F.count(F.lit(1)).alias("all"), deletes.alias("deleted"))
    writer = counted.write.format("weir").mode("append").option("deleteColumn", _DELETE)
    writer = writer.options(**as_options(place.storage))
    if statement_id is not None:
        writer = writer.option("statementId", statement_id)
    with unwrap_errors():
        writer.option("weir.statement", read.to_json()).save(place.uri)
    told = seen.get
    gone = int(told["deleted"] or 0)
    return int(told["all"]) - gone, gone


def _column(name: str) -> Column:
    return F.col(backquoted(name))
