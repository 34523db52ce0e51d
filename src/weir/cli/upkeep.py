"""`weir compact`, `weir gc`, `weir reshard` and `weir adopt-shard`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, cast

import typer
from rich.markup import escape

from weir.cli import options as o
from weir.cli import screen, settings
from weir.durations import seconds
from weir.errors import InvalidInput, WeirError
from weir.format.paths import parse_shard_id
from weir.upkeep.adopt_shard import Order
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.gc.report import GcReport, Kind
from weir.upkeep.tasks import Progress

_PANEL = "Upkeep"
PASSING = ("unavailable", "conflict")
"""Kinds of errors after which a watching command continues: they may be transient."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog="Example: [bold]weir compact s3://lake/orders --watch 5m[/bold]",
        rich_help_panel=_PANEL,
    )(compact)
    app.command(
        epilog="Example: [bold]weir gc s3://lake/orders --dry-run[/bold]", rich_help_panel=_PANEL
    )(gc)
    app.command(
        epilog="Example: [bold]weir reshard s3://lake/orders --bucket id:32[/bold]",
        rich_help_panel=_PANEL,
    )(reshard)
    app.command(
        "adopt-shard",
        hidden=True,  # weir doctor names it to the few users who need it
        epilog="Example: [bold]weir adopt-shard lake/orders 4a38... --as newer[/bold]",
        rich_help_panel=_PANEL,
    )(adopt_shard)


def compact(
    uri: o.Uri,
    watch: Annotated[
        str | None,
        typer.Option(
            "--watch",
            metavar="TIME",
            help="Repeat until Ctrl-C, with this pause.",
            callback=o.duration,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="E", help="local, or spark for a Spark session.")
    ] = "local",
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Fold SSTables and WAL-only logs into the base table.

    Safe to run concurrently with writers, readers and other compactions. With --watch it
    runs until Ctrl-C, and continues after transient failures of the store.
    """
    if engine not in ("local", "spark"):
        raise typer.BadParameter(f"must be local or spark, not {engine!r}", param_hint="--engine")
    pause = None if watch is None else seconds(watch, name="--watch")
    with contextlib.suppress(KeyboardInterrupt) if pause is not None else contextlib.nullcontext():
        while True:
            try:
                _compact_once(uri, engine, option, config, json=json)
            except WeirError as error:
                if pause is None or error.kind not in PASSING:
                    raise
                screen.complain(f"{error}; retrying in {screen.span(pause)}")
            if pause is None:
                return
            sleep(pause)


def gc(
    uri: o.Uri,
    min_age: Annotated[
        str,
        typer.Option(
            "--min-age", metavar="TIME", help="Keep younger objects.", callback=o.duration
        ),
    ] = "15m",
    fence_retention: Annotated[
        str,
        typer.Option(
            "--fence-retention",
            metavar="TIME",
            help="Keep the first entry of an epoch this long.",
            callback=o.duration,
        ),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind; repeat for more."),
    ] = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Delete objects that nothing refers to any longer.

    Log entries, manifests, SSTables, checkpoints, base versions. Safe to run concurrently
    with everything else, including another gc.
    """
    table = o.open_table(uri, option, config)
    with screen.working("collecting", quiet=json) as progress:
        report = table.gc(
            min_age=min_age,
            fence_retention=fence_retention,
            dry_run=dry_run,
            kinds=cast("list[Kind]", kind) or None,
            progress=screen.progress_callback(progress),
        )
    if json:
        screen.emit(report)
    else:
        _show_gc(report)
    if not report.ok:
        for problem in report.errors:
            screen.complain(f"{problem}; run weir gc again")
        raise typer.Exit(1)


def adopt_shard(
    uri: o.Uri,
    shard: Annotated[
        str, typer.Argument(help="The shard's id, from weir doctor.", metavar="SHARD")
    ],
    order: Annotated[
        str,
        typer.Option("--as", metavar="ORDER", help="Its rows are newer or older than the table's."),
    ],
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Fold a shard that another program created beside the table's own shards.

    Seals it, so that no program can write to it again. Where it and the table have a row with the
    same key, --as newer keeps the shard's row, --as older the table's.
    """
    if order not in ("newer", "older"):
        raise typer.BadParameter(f"must be newer or older, not {order!r}", param_hint="--as")
    table = o.open_table(uri, option, config)
    with screen.working("adopting", quiet=json):
        report = table.adopt_shard(parse_shard_id(shard), cast("Order", order))
    if json:
        screen.emit(report)
    else:
        screen.out().print(
            f"[good]adopted[/good] shard {report.shard} as {report.order}:"
            f" {screen.many(report.rows, 'row')} put again"
        )


def reshard(
    uri: o.Uri,
    bucket: o.BucketBy = None,
    identity: o.IdentityBy = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Change the sharding of a table in use.

    Seals the old shards. Writers of the whole table switch to the new shards by themselves; a
    writer of a single shard is fenced and must be opened on a new shard. To finish an interrupted
    reshard, run it again.
    """
    chosen = o.sharding(bucket, identity)
    if chosen is None:
        raise typer.BadParameter("give --bucket COLUMN:N or --identity COLUMN")
    table = o.open_table(uri, option, config)
    with screen.working("resharding", quiet=json):
        table.reshard(chosen)
    shards = len([shard for shard in table.shards() if shard.is_routed])
    if json:
        screen.emit({"uri": table.uri, "sharding": str(chosen), "shards": shards})
    else:
        screen.out().print(
            f"[good]resharded[/good] by {escape(str(chosen))}: {screen.many(shards, 'shard')}"
        )


def _compact_once(
    uri: str, engine: str, option: list[str] | None, config: Path | None, *, json: bool
) -> None:
    began = monotonic()
    with screen.working("compacting", quiet=json) as progress:
        tell = screen.progress_callback(progress, "compacting")
        if engine == "local":
            report = o.open_table(uri, option, config).compact(progress=tell)
        else:
            found = settings.storage_options(uri, option, config)
            report = _compact_on_spark(uri, found, tell)
    took = monotonic() - began
    if json:
        screen.emit({"engine": engine, "seconds": round(took, 3), "report": report})
        return
    _show_compact(report, took)


def _compact_on_spark(
    uri: str, storage_options: Mapping[str, str] | None, progress: Progress | None
) -> CompactReport:
    try:
        from weir.spark import compact as on_spark
        from weir.spark.session import session
    except ImportError as error:
        raise InvalidInput(
            f"--engine spark needs PySpark ({error}); run pip install 'lance-weir[spark]', or use"
            " --engine local to compact in this process"
        ) from error
    return on_spark(
        session(), uri, engine="spark", storage_options=storage_options, progress=progress
    )


def _show_compact(report: CompactReport, took: float) -> None:
    console = screen.out()
    if report.job is None:
        why = report.skipped or "nothing to fold"
        console.print(f"[good]nothing to do[/good]: {escape(why)} ({screen.span(took)})")
        return
    console.print(f"[good]compacted[/good] in {screen.span(took)}")
    console.print(
        screen.facts(
            {
                "folded": f"{screen.many(report.sstables, 'SSTable')}"
                f", {report.wal_entries:,} log entries",
                "rows": f"{report.rows_written:,} written, {report.rows_deleted:,} deleted",
                "base": f"version {report.base_version}",
                **({"notes": "; ".join(report.notes)} if report.notes else {}),
            }
        )
    )


def _show_gc(report: GcReport) -> None:
    console = screen.out()
    view = screen.grid("kind", ">seen", ">deleted", ">bytes", "kept, and why")
    for name, part in report.kinds.items():
        kept = ", ".join(f"{count:,} {why}" for why, count in part.kept.most_common(3))
        view.add_row(
            name, f"{part.seen:,}", f"{part.deleted:,}", screen.size(part.deleted_bytes), kept
        )
    if report.kinds:
        console.print(view)
    for line in report.skipped:
        console.print(f"[warn]skipped[/warn] {escape(line)}")
    verb = "would delete" if report.dry_run else "deleted"
    console.print(
        f"[good]{verb}[/good] {report.deleted:,} objects,"
        f" {screen.size(report.deleted_bytes)}, in {screen.span(report.seconds)}"
    )
