"""Expiry of rows: the rule, where it is stored, and which rows are alive under it.

The rule is metadata of its column in the base, so each base version alone determines which of its
rows have expired: a checkpoint keeps the rule it was made under, a clone inherits it, and a handle
opened before a change sees the new rule with the next version it reads.

Keeps
  L-11 the newest row of a key decides: an expired row hides the older ones, and is hidden itself
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.durations import Duration, seconds
from weir.errors import CorruptEntry, InvalidInput
from weir.format.schema import TOMBSTONE

# Stored. Never change a value; add one.
EXPIRE_AFTER: Final = "weir:expire_after"
"""Key of a column's metadata: seconds, as text."""

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY: Final = 86_400
_INT64: Final = 2**63 - 1
_EXPIRED: Final = re.compile(r"CAST\(`.+` AS BIGINT\) <= -?\d+")


@dataclass(frozen=True)
class Expire:
    """Rows expire once `after` has passed since the time in their column `column`.

    The column is a timestamp (without a zone: UTC) or a date32 (its first moment, in UTC); a row
    whose time is null never expires. `after` is seconds, a `timedelta`, or text such as "30d".
    """

    column: str
    after: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", seconds(self.after, name="after"))

    @property
    def after_s(self) -> float:
        """`after` in seconds."""
        return seconds(self.after)

    def to_metadata(self) -> dict[str, str]:
        """The rule as metadata of its column."""
        return {EXPIRE_AFTER: repr(self.after_s)}


def check_expire(rule: Expire | None, schema: pa.Schema) -> None:
    """Raise `InvalidInput` unless the table has the rule's column, and that column holds times."""
    if rule is None:
        return
    if not isinstance(rule, Expire):
        raise InvalidInput(f"expire is a weir.Expire(column, after), or None, got {rule!r}")
    if rule.column not in schema.names:
        raise InvalidInput(
            f"Expire: the table has no column {rule.column!r}; it has {schema.names}"
        )
    dtype = schema.field(rule.column).type
    if not (pa.types.is_timestamp(dtype) or pa.types.is_date32(dtype)):
        raise InvalidInput(
            f"Expire: column {rule.column!r} is {dtype}; use a timestamp or date32 column"
        )


def expire_of(schema: pa.Schema, where: str) -> Expire | None:
    """The rule that the columns of a base carry, if any."""
    for field in schema:
        text = _mark(field.metadata)
        if text is None:
            continue
        try:
            return Expire(field.name, float(text))
        except (ValueError, InvalidInput) as error:
            raise CorruptEntry(
                f"{where}: the metadata {EXPIRE_AFTER!r} of column {field.name!r} is {text!r}, not"
                " a number of seconds. Correct or remove it with Lance (update_field_metadata)"
            ) from error
    return None


def _mark(metadata: Mapping[bytes, bytes] | None) -> bytes | None:
    return (metadata or {}).get(EXPIRE_AFTER.encode())


@dataclass(frozen=True)
class Alive:
    """The rows alive at one moment: those whose time, as a number in its unit, is above `last`."""

    field: pa.Field
    last: int
    confirm: Callable[[], Alive] | None = dataclasses.field(default=None, compare=False)
    """If given, it is asked before a row is taken for expired: by a decision, which would replace
    the row, and must not trust the clock of one machine (O-2)."""

    @property
    def column(self) -> str:
        """The column with the time."""
        name: str = self.field.name
        return name

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray | pa.ChunkedArray:
        """True for each row that is alive; a row without a time is."""
        times = _numbers(rows.column(self.column))
        alive = pc.fill_null(pc.greater(times, self.last), True)
        if self.confirm is None or pc.all(alive, min_count=0).as_py():
            return alive
        return self.confirm().mask(rows)

    def keep(self, rows: Any) -> Any:
        """The rows of a batch or table that are alive."""
        mask = self.mask(rows)
        return rows if pc.all(mask, min_count=0).as_py() else rows.filter(mask)

    def expired_to_tombstones(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with each expired one turned into a tombstone of its key."""
        dead = pc.invert(self.mask(rows))
        if not pc.any(dead, min_count=0).as_py():
            return rows
        index = rows.schema.get_field_index(TOMBSTONE)
        return rows.set_column(index, rows.schema.field(index), pc.or_(rows.column(index), dead))

    def sql(self) -> str:
        """`mask` as SQL for Lance, over numbers: a literal has no zone and takes the column's."""
        name = f"`{self.column}`"
        return f"({name} IS NULL OR CAST({name} AS BIGINT) > {self.last})"

    def expired_sql(self) -> str:
        """SQL for Lance that selects the expired rows."""
        return f"CAST(`{self.column}` AS BIGINT) <= {self.last}"  # as `selects_expired` knows it

    def also(self, filter: Any) -> Any:
        """A filter that passes the rows that pass `filter` and are alive."""
        if filter is None:
            return self.sql()
        if isinstance(filter, str):
            return f"{self.sql()} AND ({filter}\n)"
        whole = pa.int32() if pa.types.is_date32(self.field.type) else pa.int64()
        last = pa.array([self.last], whole).cast(self.field.type)[0]
        time = pc.field(self.column)
        return (time.is_null() | (time > last)) & filter


def selects_expired(sql: str) -> bool:
    """True for the text of `Alive.expired_sql`, of any column and time."""
    return _EXPIRED.fullmatch(sql) is not None


def alive_at(rule: Expire | None, now: float, field: pa.Field | None) -> Alive | None:
    """The rows alive at `now`, in seconds since 1970; None: all. `field` is the rule's column.

    A row is expired from its time plus `after` on, that moment included.
    """
    if rule is None or field is None:
        return None
    cutoff = now - rule.after_s
    dtype = field.type
    if pa.types.is_date32(dtype):
        last = math.floor(cutoff / _DAY)
    else:
        last = math.floor(cutoff * _PER_SECOND[dtype.unit])
    return Alive(field, max(-_INT64, min(_INT64, last)))


def _numbers(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if pa.types.is_date32(times.type):
        times = times.cast(pa.int32())
    return times.cast(pa.int64())
