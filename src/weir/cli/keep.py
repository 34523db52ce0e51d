"""`weir keep ROOT...`, `weir keep status` and `weir keep retry`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

if TYPE_CHECKING:
    from weir.keep.keeper import Keeper
    from weir.keep.policy import KeeperPolicy
    from weir.keep.server import Pages
    from weir.keep.status import JobStatus
    from weir.upkeep.due import Upkeep
    from weir.upkeep.perform import Fold, JobReport


class Keep(click.Group):
    """A group whose first word may also be a prefix to keep."""

    default = "run"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take everything that is no subcommand as the arguments of `run`."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@click.group("keep", cls=Keep, no_args_is_help=True, epilog="Example: weir keep status s3://lake")
def keep() -> None:
    """Look after every table below some prefixes.

    weir keep ROOT... (short for weir keep run ROOT...) compacts, collects and makes checkpoints as
    its policy says, until it is stopped. See weir keep run --help.
    """


_roots = click.argument(
    "roots",
    nargs=-1,
    required=True,
    metavar="ROOT...",
    help="Prefixes: a path, s3://, gs:// or az://; all tables below them, or a table.",
)
_policy = o.file(
    "--policy", "policy_file", about="When what is due, as TOML; without it the defaults."
)


@command("run", group=keep, example="weir keep run s3://lake --policy keep.toml --listen :9464")
@_roots
@_policy
@o.flag("--once", about="Look at every table once, then end.")
@o.flag("--dry-run", about="Show what is due, once; do nothing.")
@o.text(
    "--listen", metavar="HOST:PORT", about="Serve /healthz, /readyz and /metrics at this address."
)
def run(
    call: Invocation,
    roots: Sequence[str],
    policy_file: Path | None,
    *,
    once: bool,
    dry_run: bool,
    listen: str | None,
) -> None:
    """Do what is due for every table below the prefixes, also for later ones.

    Never fences a writer that may live, unless the policy says after how long. Several keepers are
    as safe as one. SIGHUP reads the policy again; SIGTERM and Ctrl-C end it when the jobs under way
    are done, a second Ctrl-C at once.
    With --once the exit status is 1 if a job failed.
    """
    from weir.cli.upkeep import compact_on_spark
    from weir.keep.keeper import Keeper

    policy = _load(policy_file)
    for root in roots:
        _check_root(root)

    def tell(report: JobReport) -> None:
        call.out.show(_plain(report), _line(report))

    def fold(uri: str, found: Upkeep) -> Fold | None:
        least = keeper.policy.spark_bytes
        if least is None or found.debt.nbytes < least:
            return None
        return lambda _: compact_on_spark(uri, call.storage(uri))

    keeper = Keeper(
        roots,
        policy,
        storage=call.storage,
        tell=tell,
        reload=lambda: _load(policy_file),
        fold=fold,
        dry_run=dry_run,
    )
    with _listening(keeper, listen):
        if once or dry_run:
            reports = keeper.once()
            if any(report.result in ("failed", "damaged") for report in reports):
                raise click.exceptions.Exit(1)
            if not reports and not call.json:
                call.out.show(
                    None,
                    output.done("nothing is due", f"in {output.many(len(keeper.tables), 'table')}"),
                )
        else:
            with _signals(keeper):
                keeper.run()


@command("status", group=keep, example="weir keep status s3://lake")
@_roots
@_policy
def status(call: Invocation, roots: Sequence[str], policy_file: Path | None) -> None:
    """Show what became of each job: succeeded, failed, or silent.

    Silent: due for longer than the policy's silent_after. The exit status is 1 if a job failed or
    is silent, or a table is damaged.
    """
    from weir.keep.discover import WORKERS
    from weir.keep.keeper import Keeper

    policy = replace(_load(policy_file), jobs=WORKERS)
    keeper = Keeper(roots, policy, storage=call.storage, dry_run=True)
    keeper.once()
    jobs = keeper.statuses
    shown = [_standing(job) for job in jobs] or [
        output.aside(f"nothing was ever due in {output.many(len(keeper.tables), 'table')}")
    ]
    call.out.show(jobs, *shown)
    if any(job.status in ("failed", "silent", "damaged") for job in jobs):
        raise click.exceptions.Exit(1)


@command("retry", group=keep, example="weir keep retry s3://lake/orders")
@o.uri
def retry(call: Invocation, uri: str) -> None:
    """Forget failures and damage of a table, so that keepers try again.

    For a table that was repaired: a keeper reports a damaged table once and then leaves it alone.
    """
    from weir.records.keeping import KeepRecords

    core = call.open(uri).core
    KeepRecords(core.store, core.env).forget()
    call.out.show({"uri": core.uri}, output.done("forgotten", "keepers look at it again"))


def _load(path: Path | None) -> KeeperPolicy:
    from weir.keep import policy

    return policy.KeeperPolicy() if path is None else policy.load(path)


def _check_root(root: str) -> None:
    from weir.store.open import normalize

    if root in keep.commands:  # `weir keep --json status lake`
        hint = f"write weir keep {root} before the options, or ./{root} for a folder of that name"
        raise click.BadParameter(hint, param_hint="ROOT")
    with o.usage("ROOT"):
        normalize(root)


@contextlib.contextmanager
def _signals(keeper: Keeper) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the keeper, SIGHUP lets it read its policy again. A second Ctrl-C does
    not wait for the jobs under way, which is as safe as killing it."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        keeper.stop()

    handlers = {
        signal.SIGTERM: lambda *_: keeper.stop(),
        signal.SIGINT: interrupt,
        signal.SIGHUP: lambda *_: keeper.reload(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _listening(keeper: Keeper, listen: str | None) -> Iterator[None]:
    if listen is None:
        yield
        return
    from weir.keep.server import parse_address, serving

    with o.usage("--listen"):
        address = parse_address(listen)
    with serving(address, pages(keeper)) as (host, port):
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104  only shown
        output.complain(f"listening on {shown}:{port}")
        yield


def pages(keeper: Keeper) -> Pages:
    """What a keeper answers."""
    import weir
    from weir.keep.server import Page

    weir.metrics()  # from now on it is measured

    def healthz() -> Page:
        return Page(200, "ok\n") if keeper.is_alive else Page(503, "the keeper does not turn\n")

    def readyz() -> Page:
        return Page(200, "ok\n") if keeper.is_ready else Page(503, "not every root was searched\n")

    def metrics() -> Page:
        return Page(200, weir.metrics(), "text/plain; version=0.0.4; charset=utf-8")

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


_COLORS = {"succeeded": "good", "failed": "bad", "damaged": "bad", "silent": "bad"}


def _line(report: JobReport) -> Text:
    color = _COLORS.get(report.result, "mark")
    took = f" ({output.span(report.seconds)})" if report.seconds else ""
    again = f"; next try {output.moment(report.next_try)}" if report.next_try else ""
    return Text.assemble(
        f"{report.uri} {report.job} ", (report.result, color), f" {report.said}{again}{took}"
    )


def _plain(report: JobReport) -> dict[str, object]:
    return {name: value for name, value in vars(report).items() if name != "report"}


def _standing(job: JobStatus) -> Text:
    color = _COLORS.get(job.status, "mark")
    last = f"last done {output.moment(job.succeeded)}"
    again = f"next try {output.moment(job.next_try)}" if job.next_try else ""
    rest = "; ".join(part for part in (job.said, last, again) if part)
    return Text.assemble(f"{job.uri} {job.job} ", (job.status, color), f" {rest}")
