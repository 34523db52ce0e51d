"""`weir compact`, `weir gc`, `weir reshard`, `weir adopt-shard` and `weir wal move`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import click
from rich.console import RenderableType

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.durations import Duration
from weir.errors import InvalidInput, WeirError
from weir.upkeep.defaults import FENCE_RETENTION, LEASE, MIN_AGE
from weir.upkeep.gc.report import KINDS, GcReport, Kind

if TYPE_CHECKING:
    from weir.upkeep.adopt_shard import Order
    from weir.upkeep.compact.run import CompactReport
    from weir.upkeep.tasks import Progress

PASSING: Final = ("unavailable", "conflict")
"""Kinds of errors after which a watching command continues: they may be transient."""


@command("compact", example="weir compact s3://lake/orders --watch 5m")
@o.uri
@o.watch
@click.option(
    "--fold-wal/--no-fold-wal",
    default=None,
    help="Fold all log entries, ending writers; or none. Default: those no writer holds.",
)
@o.choice("--engine", of=["local", "spark"], about="This process, or a Spark session.")
@o.time(
    "--lease",
    default=LEASE,
    about="Leave another compaction's younger claim alone; 0s if it was killed.",
)
def compact(
    call: Invocation,
    uri: str,
    watch: float | None,
    *,
    fold_wal: bool | None,
    engine: str,
    lease: float,
) -> None:
    """Fold SSTables and WAL-only logs into the base table.

    Safe to run concurrently with writers, readers and other compactions. With --watch it
    runs until Ctrl-C, folds when enough has gathered (as weir keep does), and continues after
    transient failures of the store.
    """

    def once() -> None:
        began = monotonic()
        if watch is not None and fold_wal is None and not _is_due(call, uri):
            return
        with call.out.working("compacting") as progress:
            if engine == "local":
                table = call.open(uri)
                report = table.compact(fold_wal=fold_wal, lease=lease, progress=progress)
            else:
                report = compact_on_spark(uri, call.storage(uri), fold_wal, lease, progress)
        took = monotonic() - began
        told = {"engine": engine, "seconds": round(took, 3), "report": report}
        call.out.show(told, *_compacted(report, took))

    _repeat(once, watch)


def _is_due(call: Invocation, uri: str) -> bool:
    """Whether compaction is due by the policy of `weir keep`; says why not."""
    import weir

    if weir.due(call.open(uri)).find("compact") is not None:
        return True
    told = {"engine": None, "seconds": 0.0, "report": None}
    call.out.show(told, output.done("nothing to do:", "compaction is not due"))
    return False


def _repeat(once: Callable[[], None], pause: float | None) -> None:
    """Run once, or with a pause again and again until Ctrl-C."""
    if pause is None:
        once()
        return
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                once()
            except WeirError as error:
                if error.kind not in PASSING:
                    raise
                output.complain(f"{error}; retrying in {output.span(pause)}")
            except click.exceptions.Exit:
                pass  # it has said what failed
            sleep(pause)


@command("gc", example="weir gc s3://lake/orders --dry-run")
@o.uri
@o.time("--min-age", default=MIN_AGE, about="Keep younger objects.")
@o.time(
    "--fence-retention",
    default=FENCE_RETENTION,
    about="Keep the first entry of an epoch this long.",
)
@o.flag("--dry-run", about="Show what would be deleted; delete nothing.")
@click.option(
    "--kind", multiple=True, type=click.Choice(KINDS), help="Only this kind; repeat for more."
)
@o.watch
def gc(
    call: Invocation,
    uri: str,
    min_age: float,
    fence_retention: float,
    *,
    dry_run: bool,
    kind: Sequence[Kind],
    watch: float | None,
) -> None:
    """Delete objects that nothing refers to any longer.

    Log entries, manifests, SSTables, checkpoints, base versions. Safe to run concurrently
    with everything else, including another gc. With --watch it runs until Ctrl-C, and continues
    after transient failures of the store.
    """

    def once() -> None:
        table = call.open(uri)
        with call.out.working("collecting") as progress:
            report = table.gc(
                min_age=min_age,
                fence_retention=fence_retention,
                dry_run=dry_run,
                kinds=list(kind) or None,
                progress=progress,
            )
        call.out.show(report, *_collected(report))
        if not report.ok:
            for problem in report.errors:
                output.complain(f"{problem}; run weir gc again")
            raise click.exceptions.Exit(1)

    _repeat(once, watch)


@command(
    "adopt-shard",
    example="weir adopt-shard lake/orders 4a38... --as newer",
    hidden=True,  # weir doctor names it to the few users who need it
)
@o.uri
@click.argument("shard", metavar="SHARD", help="The shard's id, from weir doctor.")
@click.option(
    "--as",
    "order",
    required=True,
    type=click.Choice(["newer", "older"]),
    help="Its rows are newer or older than the table's.",
)
def adopt_shard(call: Invocation, uri: str, shard: str, order: Order) -> None:
    """Fold a shard that another program created beside the table's own shards.

    Seals it, so that no program can write to it again. Where it and the table have a row with the
    same key, --as newer keeps the shard's row, --as older the table's.
    """
    from weir.format.paths import parse_shard_id

    table = call.open(uri)
    with call.out.working("adopting"):
        report = table.adopt_shard(parse_shard_id(shard), order)
    rows = output.many(report.rows, "row")
    call.out.show(
        report,
        output.done("adopted", f"shard {report.shard} as {report.order}: {rows} put again"),
    )


@command("reshard", example="weir reshard s3://lake/orders --bucket id:32")
@o.uri
@o.bucket
@o.identity
def reshard(call: Invocation, uri: str, bucket: str | None, identity: str | None) -> None:
    """Change the sharding of a table in use.

    Seals the old shards. Writers of the whole table switch to the new shards by themselves; a
    writer of a single shard is fenced and must be opened on a new shard. To finish an interrupted
    reshard, run it again.
    """
    chosen = o.sharding(bucket, identity)
    if chosen is None:
        raise click.UsageError("give --bucket COLUMN:N or --identity COLUMN")
    table = call.open(uri)
    with call.out.working("resharding"):
        table.reshard(chosen)
    shards = len([shard for shard in table.shards() if shard.is_routed])
    call.out.show(
        {"uri": table.uri, "sharding": str(chosen), "shards": shards},
        output.done("resharded", f"by {chosen}: {output.many(shards, 'shard')}"),
    )


_MOVE = "weir wal move s3://lake/orders /nvme/orders-wal"


@click.group("wal", no_args_is_help=True, epilog=f"Example: {_MOVE}")
def wal() -> None:
    """Choose where a table stores its log."""


@command("move", group=wal, example=_MOVE)
@o.uri
@click.argument("destination", required=False, metavar="WAL_URI", help="The log's new store.")
@o.flag("--beside", about="Move the log back beside the data.")
@o.flag("--accept-loss", about="Give up a log that is gone, and the rows only it held.")
def move(
    call: Invocation, uri: str, destination: str | None, *, beside: bool, accept_loss: bool
) -> None:
    """Move the log of all shards to another store.

    Claims, flushes and switches each shard. Writers in other processes are fenced, and use the new
    store when they are opened again. Readers and change feeds follow by themselves. To finish an
    interrupted move, run it again.
    """
    if beside == (destination is not None):
        raise click.UsageError("give either a WAL_URI or --beside")
    table = call.open(uri)
    with call.out.working("moving the log") as progress:
        report = table.move_wal(destination, accept_loss=accept_loss, progress=progress)
    place = "beside the data" if report.wal_uri is None else f"to {report.wal_uri}"
    moved, there = (output.many(len(s), "shard") for s in (report.moved, report.already_there))
    told = [output.done("moved", f"the log {place}: {moved}")]
    if report.already_there:
        told.append(output.aside(f"{there} already there"))
    call.out.show(report, *told)


def compact_on_spark(
    uri: str,
    storage: Mapping[str, str],
    fold_wal: bool | None = None,
    lease: Duration = LEASE,
    progress: Progress | None = None,
) -> CompactReport:
    """Compact in this process's Spark session; `InvalidInput` without PySpark."""
    try:
        from weir.spark import compact as on_spark
        from weir.spark.session import session
    except ImportError as error:
        raise InvalidInput(
            f"--engine spark needs PySpark ({error}); run pip install 'lance-weir[spark]', or use"
            " --engine local to compact in this process"
        ) from error
    return on_spark(
        session(),
        uri,
        engine="spark",
        fold_wal=fold_wal,
        lease=lease,
        storage_options=storage,
        progress=progress,
    )


def _compacted(report: CompactReport, took: float) -> list[RenderableType]:
    if report.job is None and not report.rows_expired:
        why = report.skipped or "nothing to fold"
        return [output.done("nothing to do:", f"{why} ({output.span(took)})")]
    expired = f", {report.rows_expired:,} expired" if report.rows_expired else ""
    told = {
        "folded": f"{output.many(report.sstables, 'SSTable')}, {report.wal_entries:,} log entries",
        "rows": f"{report.rows_written:,} written, {report.rows_deleted:,} deleted{expired}",
    }
    if report.job is not None:
        told["base"] = f"version {report.base_version}"
    if report.notes:
        told["notes"] = "; ".join(report.notes)
    return [output.done("compacted", f"in {output.span(took)}"), output.facts(told)]


def _collected(report: GcReport) -> list[RenderableType]:
    rows = [
        (
            name,
            f"{part.seen:,}",
            f"{part.deleted:,}",
            output.size(part.deleted_bytes),
            ", ".join(f"{count:,} {why}" for why, count in part.kept.most_common(3)),
        )
        for name, part in report.kinds.items()
    ]
    told: list[RenderableType] = []
    if rows:
        headers = ("<kind", ">seen", ">deleted", ">bytes", "kept, and why")
        told.append(output.grid(*headers, rows=rows))
    told += [output.done("skipped", line) for line in report.skipped]
    verb = "would delete" if report.dry_run else "deleted"
    size, took = output.size(report.deleted_bytes), output.span(report.seconds)
    told.append(output.done(verb, f"{report.deleted:,} objects, {size}, in {took}"))
    return told
