"""Which query may number an application's batches: `_weir/apps`, write-once records (P-6).

A streaming query numbers its batches from 0. A second query that writes under the same application
name, because its checkpoint location is new, uses the same numbers for other batches, which would
be mistaken for batches already written. So the first query that writes under a name keeps it.
"""

from __future__ import annotations

from typing import ClassVar

from weir.format import paths
from weir.records import codec
from weir.store.api import ObjectExists, ObjectMissing, Store


class _App(codec.Record, frozen=True):
    KIND: ClassVar[str] = "application record"
    app: str
    query: str


def query_of(store: Store, app: str) -> str | None:
    """The query whose batches are numbered under the name `app`, or None. One get."""
    path = paths.app_path(app)
    try:
        data = store.get(path).data
    except ObjectMissing:
        return None
    return codec.loads(data, _App, f"{store.uri}/{path}").query


def take_app(store: Store, app: str, query: str) -> str:
    """Register `query` for `app` unless another query is registered; returns the registered one."""
    try:
        store.put_if_absent(paths.app_path(app), codec.dumps(_App(app, query)))
    except ObjectExists:
        return query_of(store, app) or query
    return query
