"""`CALL weir.system.compact('db.t')`: upkeep in SQL, on the driver.

Arguments and results are text. For large tables use `weir.spark.compact` and its siblings, whose
tasks run on executors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast, get_args

from pyspark.sql.types import StringType, StructField, StructType

import weir
from weir.errors import InvalidInput
from weir.records.checkpoints import Scope
from weir.spark.making import sharding_of
from weir.spark.places import Place, flag, number
from weir.upkeep.defaults import FENCE_RETENTION, MIN_AGE

Given = Mapping[str, str]
ProcedureResult = dict[str, object] | list[dict[str, object]]
"""One row, or several."""

NAMESPACE: Final = "system"
_ARGUMENT: Final = "weir.argument."
_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
"""One part of a table's name: in backquotes it may hold a dot."""


@dataclass(frozen=True)
class Procedure:
    """One procedure: the names of its arguments, the table's first, and the function to run."""

    arguments: tuple[str, ...]
    run: Callable[[weir.Table, Given], ProcedureResult]


def _compact(table: weir.Table, given: Given) -> ProcedureResult:
    fold = flag(given, "fold_wal") if "fold_wal" in given else None
    report = table.compact(fold_wal=fold, cluster=flag(given, "cluster"))
    return {
        "rows_written": report.rows_written,
        "rows_deleted": report.rows_deleted,
        "base_version": report.base_version,
        "skipped": report.skipped,
        "notes": "; ".join(report.notes) or None,
    }


def _gc(table: weir.Table, given: Given) -> ProcedureResult:
    dry = flag(given, "dry_run")
    report = table.gc(
        given.get("min_age", MIN_AGE), given.get("fence_retention", FENCE_RETENTION), dry
    )
    return {
        "deleted": report.deleted,
        "dry_run": report.dry_run,
        "errors": "; ".join(map(str, report.errors)) or None,
    }


def _checkpoint(table: weir.Table, given: Given) -> ProcedureResult:
    if given.get("scope", "durable") not in get_args(Scope):
        raise InvalidInput(f"scope must be all or durable, got {given['scope']!r}")
    label = given.get("name")
    if "scope" in given:
        made = table.checkpoint(cast("Scope", given["scope"]), label, given.get("ttl"))
    else:  # the default is the table's
        made = table.checkpoint(name=label, ttl=given.get("ttl"))
    return {"id": made.id, "name": made.name, "created": f"{made.created:.3f}"}


def _delete_checkpoint(table: weir.Table, given: Given) -> ProcedureResult:
    table.delete_checkpoint(_needed(given, "name"))
    return {"deleted": given["name"]}


def _restore(table: weir.Table, given: Given) -> ProcedureResult:
    table.restore(_needed(given, "name"))
    return {"restored": given["name"]}


def _reshard(table: weir.Table, given: Given) -> ProcedureResult:
    sharding = sharding_of({"shardby": _needed(given, "shard_by")}, (), table.schema.names)
    assert sharding is not None, "shard_by was given"
    table.reshard(sharding)
    return {"sharding": table.core.refresh().sharding}


def _history(table: weir.Table, given: Given) -> ProcedureResult:
    limit = number(given, "limit")
    told = table.history(upkeep=True) if limit is None else table.history(limit, upkeep=True)
    return [
        {
            "version": entry.version,
            "timestamp": entry.at.isoformat(sep=" ", timespec="milliseconds"),
            "operation": entry.kind,
            "detail": entry.detail or None,
            "checkpoints": ", ".join(entry.checkpoints) or None,
        }
        for entry in told
    ]


def _checkpoints(table: weir.Table, _given: Given) -> ProcedureResult:
    return [
        {
            "name": made.name,
            "id": made.id,
            "created": f"{made.created:.3f}",
            "expires": None if made.expires is None else f"{made.expires:.3f}",
            "base_version": made.base_version,
        }
        for made in table.checkpoints()
        if made.owner is None
    ]


def _needed(given: Given, name: str) -> str:
    if name not in given:
        raise InvalidInput(f"the argument {name} is missing; add {name} => '...' to the CALL")
    return given[name]


PROCEDURES: Final = {
    "compact": Procedure(("table", "fold_wal", "cluster"), _compact),
    "gc": Procedure(("table", "min_age", "fence_retention", "dry_run"), _gc),
    "checkpoint": Procedure(("table", "name", "ttl", "scope"), _checkpoint),
    "checkpoints": Procedure(("table",), _checkpoints),
    "history": Procedure(("table", "limit"), _history),
    "delete_checkpoint": Procedure(("table", "name"), _delete_checkpoint),
    "restore": Procedure(("table", "name"), _restore),
    "reshard": Procedure(("table", "shard_by"), _reshard),
}


def arguments(options: Given) -> StructType:
    """The arguments of a procedure; `InvalidInput`, which lists all procedures, if unknown."""
    return StructType([StructField(name, StringType()) for name in _asked(options).arguments])


def listed() -> StructType:
    """The names of all procedures."""
    return StructType([StructField(name, StringType()) for name in sorted(PROCEDURES)])


def call(options: Given) -> StructType:
    """Run a procedure; the rows of its result are encoded in the metadata of its columns."""
    procedure = _asked(options)
    given = {
        key.removeprefix(_ARGUMENT): value
        for key, value in options.items()
        if key.startswith(_ARGUMENT)
    }
    text = _needed(given, "table")
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(text)]
    if "/" in text or not parts:
        parts = [text.replace("`", "")]
    elif parts[0] == options.get("weir.catalog"):
        parts = parts[1:]
    where = {"weir.namespace": "/".join(parts[:-1]), "weir.name": parts[-1]}
    told = procedure.run(Place.of({**options, **where}).current(), given)
    rows = told if isinstance(told, list) else [told]
    if not rows:
        return StructType([StructField("none", StringType(), True, {"texts": []})])
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return StructType(
        [
            StructField(
                name, StringType(), True, {"texts": ["" if v is None else str(v) for v in values]}
            )
            for name, values in columns.items()
        ]
    )


def _asked(options: Given) -> Procedure:
    space, _, name = re.sub("`", "", options["weir.procedure"]).rpartition(".")
    found = PROCEDURES.get(name)
    if found is None or space != NAMESPACE:
        raise InvalidInput(
            f"there is no procedure {options['weir.procedure']}; the namespace {NAMESPACE} has"
            f" {', '.join(sorted(PROCEDURES))}"
        )
    return found
