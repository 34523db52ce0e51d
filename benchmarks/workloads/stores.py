"""Is put-if-absent free? The same bytes, put with the condition and without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import obstore

from benchmarks.harness import ANYWHERE, Ctx, Goal, Round, Side, Workload
from benchmarks.peers import object_store, threaded_puts
from benchmarks.workloads.doors import QUANTILES, timed
from weir.store.open import open_store

BODY = b"x" * 1500
Put = Callable[[int], object]
Bare = Callable[[Ctx], Put]


def weir_put(*, conditional: bool) -> Bare:
    def opened(ctx: Ctx) -> Put:
        store = open_store(ctx.uri("store"), ctx.options or None)
        numbers = itertools.count()
        verb = store.put_if_absent if conditional else store.put
        return lambda _: verb(f"objects/{next(numbers):012d}", BODY)

    return opened


def obstore_put(*, conditional: bool) -> Bare:
    mode = "create" if conditional else "overwrite"

    def opened(ctx: Ctx) -> Put:
        store = object_store(ctx)
        numbers = itertools.count()
        return lambda _: obstore.put(
            store, f"objects/{next(numbers):012d}", BODY, mode=mode, use_multipart=False
        )

    return opened


def rate(bare: Bare, threads: int) -> Side:
    """Puts per second of `threads` threads."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        put = bare(ctx)
        threaded_puts(put, threads, ctx.seconds / 4)
        yield lambda: threaded_puts(put, threads, ctx.seconds)

    return side


def latency(bare: Bare, share: float) -> Side:
    """The `share` quantile of the put latencies of one thread, in milliseconds."""

    @contextmanager
    def side(ctx: Ctx) -> Iterator[Round]:
        put = bare(ctx)
        threaded_puts(put, 1, ctx.seconds / 4)
        yield lambda: timed(put, 1, ctx.seconds, share)

    return side


def _sides(make: Callable[[Bare], Side]) -> dict[str, Side]:
    return {
        "weir": make(weir_put(conditional=True)),
        "floor": make(obstore_put(conditional=False)),
        "weir, plain put": make(weir_put(conditional=False)),
        "obstore, if absent": make(obstore_put(conditional=True)),
    }


NOTE = "bare objects of 1.5 kB; the floor is obstore's unconditional put"
WORKLOADS = [
    *(
        Workload(
            f"put-if-absent against plain put, {'1 thread' if n == 1 else f'{n} threads'}",
            unit="puts/s",
            better="higher",
            goal="0.9 of the plain put",
            goals=[Goal("weir, plain put", times=0.9)],
            sides=_sides(lambda bare, n=n: rate(bare, n)),  # type: ignore[misc]
            where=ANYWHERE,
            note=NOTE,
        )
        for n in (1, 16)
    ),
    *(
        Workload(
            f"put-if-absent against plain put, 1 thread, {name}",
            unit="ms",
            better="lower",
            goal="reported",
            sides=_sides(lambda bare, share=share: latency(bare, share)),  # type: ignore[misc]
            where=ANYWHERE,
            note=NOTE,
        )
        for name, share in QUANTILES
    ),
]
