"""What a CREATE or REPLACE TABLE says: read from the catalog's request, or refused.

A clause that a table could not keep is refused: ignored, it would make another table than the one
that was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructType

from weir.errors import InvalidInput
from weir.spark.describing import UNSAID
from weir.spark.making import BUCKET, TableSpec, defaults_of, loosened, sharding_of
from weir.spark.options import CREATE, check_options
from weir.spark.places import Place, names, resolved
from weir.spark.types import arrow_schema, require_storable, spark_schema

_WITH: Final = "weir.with."
"""Prefix of the options of the write that creates the table."""
_IDENTITY: Final = re.compile(r"(?:identity\()?([^(),]+)\)?")

Options = Mapping[str, str]


def statement_of(place: Place, options: Options) -> tuple[dict[str, str], StructType]:
    """The properties and the columns of the statement; `InvalidInput` for what cannot be kept."""
    given = _given(options)
    _refuse_clauses(place, options)
    check_options(given, CREATE, "CREATE TABLE of weir")
    schema = StructType.fromJson(json.loads(options["weir.schema"]))
    require_storable(schema)
    return given, schema


def spec_of(options: Options, given: dict[str, str], columns: list[str]) -> TableSpec:
    """Key and shards, as clauses or as properties; `InvalidInput` where the two differ."""
    clause, told = names(options, "weir.key"), names(given, "primaryKey")
    key = [resolved(name, columns) for name in clause or told or []]
    if clause and told and key != [resolved(name, columns) for name in told]:
        raise InvalidInput(
            f"PRIMARY KEY says {clause}, the property primaryKey {told}; give one of them"
        )
    by = options.get("weir.partitions")
    sharding = sharding_of(given, key, columns)
    if by is not None:
        clause_sharding = sharding_of({"shardby": _shard_by(by)}, key, columns)
        if sharding not in (None, clause_sharding):
            raise InvalidInput(
                f"PARTITIONED BY or CLUSTERED BY says {clause_sharding}, the properties"
                f" {sharding}; give one of them"
            )
        sharding = clause_sharding
    said = tuple(key) if clause or told is not None else None
    return TableSpec(said, sharding, given.get("waluri"), defaults_of(given))


def require_loose(schema: StructType) -> None:
    """`InvalidInput` for NOT NULL inside a column, which is not kept; that of columns is."""
    loose = spark_schema(loosened(arrow_schema(schema)))
    for field in schema:
        if field.dataType != loose[field.name].dataType:
            raise InvalidInput(
                f"column {field.name!r} has NOT NULL inside its {field.dataType.typeName()}, which"
                " weir does not keep: leave it out there. NOT NULL of a whole column is kept"
            )


def _given(options: Options) -> dict[str, str]:
    """What the statement says about the new table: properties, OPTIONS, options of its write."""
    known = {name.lower() for name in CREATE}
    write = {
        key.removeprefix(_WITH): value
        for key, value in options.items()
        if key.startswith(_WITH) and key.removeprefix(_WITH) in known
    }
    own = {
        key.removeprefix("option."): value
        for key, value in options.items()
        if not key.startswith("weir.")
    }
    return {**write, **own}


def _refuse_clauses(place: Place, options: Options) -> None:
    """`InvalidInput` for a clause that the table could not keep."""
    elsewhere = options.get("location", options.get("path"))
    if elsewhere is not None and Place(elsewhere).uri != place.uri:
        raise InvalidInput(
            f"the name of a weir table determines its location ({place.uri}): leave LOCATION out,"
            " or use the path itself as the name, in backquotes"
        )
    if "weir.constraint" in options:
        raise InvalidInput(
            "PRIMARY KEY is the only constraint of weir tables; remove"
            f" {options['weir.constraint']}"
        )
    if "provider" in options and options["provider"].lower() != "weir":
        raise InvalidInput(
            f"this catalog has only tables of weir, not of {options['provider']}: leave USING or"
            " format out, or create the table in another catalog"
        )
    for word, instead in UNSAID.items():
        if word.lower() in options:
            raise InvalidInput(f"CREATE TABLE cannot keep the property {word}: {instead}")
    for word in ("comment", "collation"):
        if word in options:
            raise InvalidInput(f"a weir table keeps no {word}; leave {word.upper()} out")


def _shard_by(by: str) -> str:
    """The option `shardBy` for PARTITIONED BY and CLUSTERED BY, as Spark writes them."""
    if ";" in by:
        raise InvalidInput(f"a table is sharded by one column; PARTITIONED BY has several: {by}")
    plain = _IDENTITY.fullmatch(by)
    if plain is None and BUCKET.fullmatch(by) is None:
        raise InvalidInput(
            f"a table is sharded by a column, PARTITIONED BY (c), or by a hash of it, CLUSTERED BY"
            f" (c) INTO n BUCKETS; it cannot be sharded by {by}"
        )
    return by if plain is None else plain.group(1)
