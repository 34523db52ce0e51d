"""The rule by which rows of the base expire, and the deletion of expired rows."""

from __future__ import annotations

import lance

from weir.format.expiry import EXPIRE_AFTER, Alive, Expire, expire_of
from weir.lake.lance_errors import lance_errors


def set_expire(dataset: lance.LanceDataset, expire: Expire | None) -> None:
    """Set the rule from the next version on, in one commit; no commit if it is set already.

    `CommitConflict` when another process changed the columns since the dataset's version.
    """
    standing = expire_of(dataset.schema, dataset.uri)
    if standing == expire:
        return
    changes: dict[str, dict[str, str | None]] = {}
    if standing is not None:
        changes[standing.column] = {EXPIRE_AFTER: None}
    if expire is not None:
        changes[expire.column] = {**expire.to_metadata()}
    with lance_errors(f"changing when rows of {dataset.uri} expire"):
        dataset.update_field_metadata(changes)


def drop_expired(dataset: lance.LanceDataset, alive: Alive) -> int:
    """Delete the rows that have expired; return how many. One commit, if there are any.

    The base is the oldest level, so deleting a row from it brings no older row back. A newer row of
    the same key, in an SSTable or a log, is judged on its own (L-11).
    """
    with lance_errors(f"dropping expired rows of {dataset.uri}"):
        expired = dataset.count_rows(alive.expired_sql())
        if expired:
            dataset.delete(alive.expired_sql())
        return int(expired)
