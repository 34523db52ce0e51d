"""Is put-if-absent free? The same bytes, put with the condition and without."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import obstore

from benchmarks.harness import Ctx, Round, Workload
from benchmarks.peers import object_store, timed_puts
from weir.store.open import open_store

BODY = b"x" * 1500


@contextmanager
def weir_put(ctx: Ctx, *, conditional: bool) -> Iterator[Round]:
    store = open_store(ctx.uri("store"), ctx.options or None)
    numbers = itertools.count()
    verb = store.put_if_absent if conditional else store.put

    def one(_: int) -> None:
        verb(f"objects/{next(numbers):012d}", BODY)

    timed_puts(one, ctx.seconds / 4)
    yield lambda: statistics.median(timed_puts(one, ctx.seconds)) * 1e3


@contextmanager
def obstore_put(ctx: Ctx, *, mode: str) -> Iterator[Round]:
    store = object_store(ctx)
    numbers = itertools.count()

    def one(_: int) -> None:
        path = f"objects/{next(numbers):012d}"
        obstore.put(store, path, BODY, mode=mode, use_multipart=False)

    timed_puts(one, ctx.seconds / 4)
    yield lambda: statistics.median(timed_puts(one, ctx.seconds)) * 1e3


WORKLOADS = [
    Workload(
        "put-if-absent against plain put",
        unit="ms",
        better="lower",
        goal="reported",
        sides={
            "weir": partial(weir_put, conditional=True),
            "floor": partial(obstore_put, mode="overwrite"),
            "weir, plain put": partial(weir_put, conditional=False),
            "obstore, if absent": partial(obstore_put, mode="create"),
        },
        note="median latency of 1.5 kB; the floor is obstore's unconditional put",
    )
]
