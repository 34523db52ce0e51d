"""Folds of four overlapping generations into a large base, beside one bare merge_insert."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import lance
import pyarrow as pa

import weir
from benchmarks import data
from benchmarks.harness import Ctx, Goal, Round, Workload
from benchmarks.tables import copy_table, drop_table, make_layers


def _generation_rows(ctx: Ctx) -> int:
    return ctx.n(50_000, 5000, 50)


def _layers(ctx: Ctx, *, btree: bool) -> dict[str, Any]:
    return make_layers(
        ctx,
        base_rows=ctx.n(2_000_000, 200_000, 1000),
        generations=4,
        generation_rows=_generation_rows(ctx),
        btree=btree,
    )


def merged_rows(ctx: Ctx) -> pa.Table:
    """The newest row of each key over all generations."""
    parts = [
        data.overlapping(number, _generation_rows(ctx), ctx.data["base_rows"])
        for number in range(ctx.data["generations"])
    ]
    rows = pa.Table.from_batches(parts)
    newest = {key: place for place, key in enumerate(rows.column("id").to_pylist())}
    return rows.take(pa.array(sorted(newest.values()))).combine_chunks()


@contextmanager
def fold_weir(ctx: Ctx, *, indexes: bool) -> Iterator[Round]:
    def run() -> float:
        uri = copy_table(ctx, ctx.data["uri"])
        table = weir.open(uri, storage_options=ctx.options or None)
        began = time.perf_counter()
        report = table.compact(indexes=indexes, rewrite=False)
        took = time.perf_counter() - began
        assert report.sstables == ctx.data["generations"]
        drop_table(ctx, uri)
        return took * 1e3

    yield run


@contextmanager
def merge_bare(ctx: Ctx) -> Iterator[Round]:
    rows = merged_rows(ctx)

    def run() -> float:
        uri = copy_table(ctx, ctx.data["uri"])
        dataset = lance.dataset(uri, storage_options=ctx.options or None)
        shaped = rows.cast(dataset.schema)
        began = time.perf_counter()
        merge = dataset.merge_insert(["id"]).when_matched_update_all()
        merge.when_not_matched_insert_all().execute(shaped)
        took = time.perf_counter() - began
        drop_table(ctx, uri)
        return took * 1e3

    yield run


def _workload(name: str, *, btree: bool) -> Workload:
    sides: dict[str, Any] = {
        "weir": partial(fold_weir, indexes=False),
        "floor": merge_bare,
    }
    if btree:
        sides["weir, indexes brought up to date"] = partial(fold_weir, indexes=True)
    return Workload(
        f"compaction, 4 x 50k rows into 2M, {name}",
        unit="ms",
        better="lower",
        goal="within 1.2 of one bare merge_insert",
        goals=[Goal("floor", within=1.2)],
        prepare=partial(_layers, btree=btree),
        sides=sides,
        note="the floor merges rows that are in memory already, newest of each key",
        rounds_max=9,
    )


WORKLOADS = [_workload("no index", btree=False), _workload("BTree on the key", btree=True)]
