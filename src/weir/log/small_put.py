"""Puts of a few rows, shaped together: one conversion for the rows of all puts that wait.

Shaping such a put by itself takes longer than its rows are worth.

Keeps
  M-7  a bad put fails alone: where the common conversion fails, each put is shaped by itself
The result is what `Intake.rows` gives for each put. Another thread may shape a put only if no user
code runs for its values: those of a list of plain dicts, or of a small batch.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.env import Limits
from weir.errors import WeirError
from weir.format.python_values import from_python
from weir.log.intake import Intake

SMALL_PUT_ROWS: Final = 16
SMALL_PUT_BYTES: Final = 4096

_PLAIN: Final = frozenset(
    {
        bool,
        int,
        float,
        type(None),
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        decimal.Decimal,
    }
)
_PLAIN_BYTES: Final = 16


class SmallPut(NamedTuple):
    """The rows of one put, in dicts of their own: before a thread shapes them, their caller may be
    gone, or another task may change its dicts (M-9). The values in them cannot change.

    A tuple, since one is made for each put: it takes a third of the time of a frozen dataclass."""

    data: list[dict[str, Any]] | pa.RecordBatch
    rows: int
    nbytes: int
    """Roughly what they take in memory."""
    kind: pa.Schema | None = None
    """Only puts of one kind are shaped together: dicts (None), or batches of one schema."""

    def column(self, name: str, dtype: pa.DataType) -> pa.Array | None:
        """The values of one column; None where it has another type, or will be refused."""
        if isinstance(self.data, pa.RecordBatch):
            index = self.data.schema.get_field_index(name)
            found = None if index < 0 else self.data.column(index)
            return found if found is not None and found.type.equals(dtype) else None
        try:
            return from_python([row.get(name) for row in self.data], dtype, name)
        except WeirError:
            return None


class Shaped(NamedTuple):
    """The rows of one put, within a shaped batch that may hold the rows of others too."""

    batch: pa.RecordBatch
    offset: int
    rows: int
    nbytes: int

    def alone(self) -> pa.RecordBatch:
        """These rows and no others."""
        whole = self.rows == self.batch.num_rows
        return self.batch if whole else self.batch.slice(self.offset, self.rows)


def as_small_put(data: Any) -> SmallPut | None:
    """`data` if it is small enough to be shaped together with other puts; else None."""
    if isinstance(data, pa.RecordBatch):
        if not 0 < data.num_rows <= SMALL_PUT_ROWS:
            return None
        nbytes = data.get_total_buffer_size()
        return (
            SmallPut(data, data.num_rows, nbytes, data.schema)
            if nbytes <= SMALL_PUT_BYTES
            else None
        )
    if type(data) is dict:
        data = [data]
    if type(data) is not list or not 0 < len(data) <= SMALL_PUT_ROWS:
        return None
    nbytes = 0
    for row in data:
        if type(row) is not dict:
            return None
        for value in row.values():
            kind = type(value)
            if kind in _PLAIN:
                nbytes += _PLAIN_BYTES
            elif kind is str or kind is bytes:
                nbytes += len(value)
            else:
                return None
    if nbytes > SMALL_PUT_BYTES:
        return None
    data = [row.copy() for row in data]  # guard: M-9 test_reused_memory
    return SmallPut(data, len(data), nbytes)


def shape_together(
    intake: Intake, puts: Sequence[SmallPut], limits: Limits
) -> list[Shaped | Exception]:
    """For each put its rows, or the error that `Intake.rows` or `Intake.fit` has for them."""
    shaped: list[Shaped | Exception] = []
    for _, run in groupby(puts, key=attrgetter("kind")):
        shaped.extend(_shape_run(intake, list(run), limits))
    return shaped


def _shape_run(intake: Intake, run: list[SmallPut], limits: Limits) -> Sequence[Shaped | Exception]:
    try:
        batch, nbytes = _shape(intake, run, limits)
    except Exception as error:  # noqa: BLE001  returned to the put that caused it
        if len(run) == 1:  # guard: M-7 always
            return [error]
        return [result for put in run for result in _shape_run(intake, [put], limits)]
    shares, offset, total = [], 0, batch.num_rows
    for put in run:
        rows = put.rows
        shares.append(Shaped(batch, offset, rows, -(-nbytes * rows // total)))
        offset += rows
    return shares


def _shape(intake: Intake, run: list[SmallPut], limits: Limits) -> tuple[pa.RecordBatch, int]:
    data: Any
    if run[0].kind is None:
        data = [row for put in run for row in put.data]
    else:
        data = pa.concat_batches([put.data for put in run]) if len(run) > 1 else run[0].data
    (batch,) = intake.rows(data)
    return batch, intake.fit([batch], limits)
