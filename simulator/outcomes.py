"""What errors hand back, judged: the caller's own rows, each batch in its true state (F-16)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from simulator.truth import BatchId, Put, Violation
from weir.errors import Backpressure, InvalidInput, WeirError

if TYPE_CHECKING:
    import pyarrow as pa

    from simulator.oracles import Judge


def ids_of(batches: Sequence[pa.RecordBatch]) -> list[BatchId]:
    """The puts that the rows belong to, in order."""
    found: dict[BatchId, None] = {}
    for batch in batches:
        columns = (batch.column("w").to_pylist(), batch.column("c").to_pylist())
        found.update(dict.fromkeys(zip(*columns, strict=True)))
    return list(found)


def handed_back(judge: Judge, error: WeirError, own: Iterable[Put]) -> set[BatchId]:
    """The puts that the error names.

    Rows of another caller break the promise, and so do rows called "not written" that are in the
    log, now or later: a caller that puts them again, as the guide says, would have them twice.
    """
    mine = {put.id for put in own}
    sent, unsent = ids_of(error.perhaps_written), ids_of(error.not_written)
    for batch in (*sent, *unsent):
        if batch not in mine:
            name = type(error).__name__
            raise Violation("T", f"{name} hands back {batch}, which is another's (F-16)") from error
    for batch in unsent:
        if batch in judge.seen:
            raise Violation(
                "T",
                f"{type(error).__name__} says that {batch} was not written, and it is at"
                f" {judge.seen[batch]} (F-16)",
            ) from error
        judge.puts[batch].refused = True
    return {*sent, *unsent}


def told_of_put(judge: Judge, error: WeirError, put: Put, own: Iterable[Put]) -> set[BatchId]:
    """A put, or the wait for one, failed: the error must name it, or it is in the log."""
    found = handed_back(judge, error, own)
    if isinstance(error, Backpressure | InvalidInput):
        return found
    if put.id not in found and put.id not in judge.seen:
        raise Violation(
            "T", f"{type(error).__name__} does not tell what became of {put.id} (F-16)"
        ) from error
    return found
