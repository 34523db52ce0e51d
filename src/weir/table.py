"""`Table`, the object users hold. Each verb lives in a module of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import Duration
from weir.format.expiry import Expire
from weir.format.sharding import Sharding, Value
from weir.read.stats import TableStats, collect_stats
from weir.reading import TableReads
from weir.records.checkpoints import Checkpoint, Ref, Scope
from weir.routing.core import Core
from weir.routing.opening import Options
from weir.routing.shards import Shard, all_shards, find_shard
from weir.routing.writer import TableWriter
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.adopt_shard import AdoptReport, Order, adopt_shard
from weir.upkeep.clone import clone
from weir.upkeep.compact.run import LEASE, CompactReport, compact
from weir.upkeep.exclusive import before_writing
from weir.upkeep.expire import set_expire
from weir.upkeep.gc.collect import gc
from weir.upkeep.gc.report import GcReport, Kind, Veto
from weir.upkeep.gc.report import Progress as GcProgress
from weir.upkeep.gc.tasks import WORKERS
from weir.upkeep.move_wal import WalMoveReport, move_wal
from weir.upkeep.parents import discard, release_clone
from weir.upkeep.reshard import ReshardReport, reshard
from weir.upkeep.restore import RestoreReport, restore
from weir.upkeep.tasks import Progress, Runner
from weir.upkeep.upgrade import QUIET, UpgradeReport, upgrade


class Table(TableReads):
    """A table on object storage. Made by `weir.create`, `weir.open` or `weir.enable`.

    Safe to share between threads. Holds no lock and claims nothing; only writers do.
    """

    def __init__(self, core: Core) -> None:
        """Use `weir.open`."""
        self.core = core
        core.before_writing = before_writing

    def __repr__(self) -> str:
        return (
            f"Table({self.uri!r}, primary_key={list(self.primary_key)}, sharding={self.sharding})"
        )

    # -- what it is ------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.core.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, as of the latest base version. One listing."""
        return self.core.schema().plain

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns, in key order; empty for an append-only table."""
        return self.core.record.primary_key

    @property
    def sharding(self) -> Sharding:
        """How rows find their shard."""
        return self.core.record.sharding

    @property
    def wal_uri(self) -> str | None:
        """The second store that holds the log, or None when it is beside the data."""
        return self.core.record.wal_uri

    @property
    def writer_defaults(self) -> WriterConfig:
        """What every writer starts from."""
        return self.core.record.writer_defaults

    @property
    def expire(self) -> Expire | None:
        """The rule by which rows expire; None: they never do. One listing."""
        return self.core.base().expire

    def set_expire(self, expire: Expire | None) -> None:
        """Set the rule by which rows expire, None for never; readers everywhere see it at once.
        Checkpoints keep their own. `InvalidInput` if the column holds no times. One base commit.
        """
        set_expire(self.core, expire)

    def shards(self) -> list[Shard]:
        """Every shard, those of the routing first.

        One listing, and two requests for each shard the record does not list.
        """
        return all_shards(self.core)

    def shard(self, id_or_value: UUID | Value) -> Shard:
        """The shard with that id, bucket or value of the identity column, created if need be.

        Raises `InvalidInput`, naming what there is, when there is no such shard.
        """
        return find_shard(self.core, id_or_value)

    def stats(self) -> TableStats:
        """Per shard: epoch, WAL tip, lag, generations, sizes, pins.

        About ten requests a shard, and up to 32 more for the sizes of unflushed entries.
        """
        return collect_stats(self.core)

    # -- writing ---------------------------------------------------------------------------------

    def writer(self, config: WriterConfig | None = None) -> TableWriter:
        """A writer that routes rows to shards and opens (claims) each shard at its first row."""
        return TableWriter(self.core, config, before_writing(self.core))

    # -- upkeep ----------------------------------------------------------------------------------

    def checkpoint(
        self, scope: Scope = "durable", name: str | None = None, ttl: Duration | None = None
    ) -> Checkpoint:
        """Pin the table as it is now.

        Scope "durable" pins every acknowledged row and the log up to it; nothing is flushed, no
        writer is disturbed. Scope "all" flushes everything accepted before the call, so that no log
        is needed to read it; a shard with unflushed rows that another process writes is claimed,
        which fences that writer. With `ttl` None it is kept until deleted. `name` is a label that
        several may share. The cut is per shard, at about five requests and a flush each; the rest
        takes a dozen more.
        """
        return checkpoints.create(self.core, scope=scope, name=name, ttl=ttl)

    def checkpoints(self) -> list[Checkpoint]:
        """The existing checkpoints. One listing, one read for each."""
        return checkpoints.checkpoints(self.core)

    def delete_checkpoint(self, checkpoint: Ref) -> None:
        """Delete a checkpoint; it is no error if it is already gone."""
        checkpoints.delete(self.core, checkpoint)

    def refresh_checkpoint(self, checkpoint: Ref, ttl: Duration | None = None) -> Checkpoint:
        """Keep it until `ttl` from now, never shorter than before; or `CheckpointNotFound`."""
        return checkpoints.refresh(self.core, checkpoint, ttl=ttl)

    def clone(
        self,
        destination: str,
        checkpoint: Ref | None = None,
        wal_uri: str | None = None,
        *,
        storage_options: Options = None,
        deep: bool = False,
        accept_loss: bool = False,
    ) -> Table:
        """Make a table at `destination` that holds exactly the checkpoint's rows, and open it.

        The base is shared by reference and pinned here; with `deep` it is copied and nothing is
        shared. Uncompacted SSTables and the pinned part of the log are copied. Without `checkpoint`
        a temporary one of scope "durable" is made. Raises `InvalidInput` when the destination is
        taken or was begun as another clone; `MissingEntry` when rows of the checkpoint were lost
        with a WAL store, unless `accept_loss` (recorded). After a failure, run it again.
        """
        return Table(
            clone(
                self.core,
                destination,
                checkpoint=checkpoint,
                wal_uri=wal_uri,
                storage_options=storage_options,
                deep=deep,
                accept_loss=accept_loss,
            )
        )

    def release_clone(self, uri: str) -> list[UUID]:
        """Release the pins that a deleted clone still holds here; returns their ids (C-15).
        `InvalidInput` when it holds none here, or still exists and shares files."""
        return release_clone(self.core, uri)

    def discard_clone(self, uri: str) -> None:
        """Remove an unfinished clone, its pins in parents first; refuses a finished one (C-3)."""
        discard(uri, self.core.storage_options, env=self.core.env)

    def compact(
        self,
        *,
        engine: Literal["local"] | Runner = "local",
        fold_wal: bool | None = None,
        cluster: bool = False,
        indexes: bool = True,
        rewrite: bool | None = None,
        lease: Duration = LEASE,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Fold SSTables, and logs that no writer keeps in memory, into the base, in one commit.

        `fold_wal` says which log entries outside SSTables are folded. None: those no writer keeps
        in memory (all that Spark and WAL-only writers wrote). True: those of MemTable writers too,
        which ends these writers at their next flush, and on append-only tables at once (their rows
        are safe). False: only those of sealed shards. `report.notes` names what stays in a log.
        Expired rows are dropped. `cluster` sorts new files by key. `indexes` adds the new rows to
        the base's indexes. `rewrite` also rewrites small files; None: when there are many. A run
        that finds another run's claim, younger than `lease`, does nothing (`report.skipped`); a run
        that loses its claim raises `CommitConflict`.
        """
        return compact(
            self.core,
            engine=engine,
            fold_wal=fold_wal,
            cluster=cluster,
            indexes=indexes,
            rewrite=rewrite,
            lease=lease,
            progress=progress,
        )

    def gc(
        self,
        min_age: Duration = "15m",
        fence_retention: Duration = "7d",
        dry_run: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        *,
        kinds: Collection[Kind] | None = None,
        progress: GcProgress | None = None,
        veto: Veto | None = None,
        workers: int = WORKERS,
    ) -> GcReport:
        """Delete objects that nothing refers to.

        `min_age` is slack for readers without a checkpoint, not a safety margin. `fence_retention`
        is how long the first entry of every epoch stays in the log, which stops a native writer
        that slept through a takeover; `InvalidInput` unless it is at least `min_age` and twice the
        table's `fence_ttl`. `kinds` chooses what is collected. `veto(kind, path)` keeps single
        objects. With `dry_run` nothing is written. Tasks that fail are in `report.errors`. One
        listing of the table, some ten requests a shard, and one per thousand objects deleted.
        """
        return gc(
            self.core,
            min_age=min_age,
            fence_retention=fence_retention,
            dry_run=dry_run,
            kinds=kinds,
            progress=progress,
            veto=veto,
            workers=workers,
        )

    def adopt_shard(self, shard: UUID, order: Order) -> AdoptReport:
        """Seal another program's shard and fold its rows as "newer" or "older" ones (X-3)."""
        return adopt_shard(self.core, shard, order)

    def move_wal(self, uri: str | None, *, progress: Progress | None = None) -> WalMoveReport:
        """Keep the log of the whole table at `uri` from now on; None: beside the data.

        Fences every writer of every shard that is moved, in any process; reopened, they write to
        the new place. Readers and change feeds follow by themselves. After a failure, run it again.
        Raises `WalStoreMismatch` when the store holds another table's log (nothing is written), or
        when a store that the log is in now is missing and may hold rows; `StoreUnsuitable` for a
        store without put-if-absent. Costs a claim, a flush and two records per shard.
        """
        return move_wal(self.core, uri, progress=progress)

    def restore(self, checkpoint: Ref) -> RestoreReport:
        """Make the table what it was at the checkpoint; every writer is fenced.

        Raises `CheckpointNotFound`; `InvalidInput` when the table was resharded since (clone the
        checkpoint instead); `MissingEntry` when log rows of a durable checkpoint are gone. Close
        your own writers first. Cost: a claim and a manifest for each shard, a commit of the base.
        """
        return restore(self.core, checkpoint)

    def reshard(
        self,
        sharding: Sharding,
        *,
        compact: bool = True,
        engine: Literal["local"] | Runner = "local",
    ) -> ReshardReport:
        """Spread new rows by `sharding` from now on; rows already there stay where they are.

        Safe under load: writers of `table.writer()` pause briefly and go on, other writers of
        the old shards get `FencedError` or `SealedShard`. With `compact` the old shards' rows are
        folded into the base afterwards, by `engine`. Raises `InvalidInput` for a sharding that does
        not fit, or while another reshard is unfinished. A claim, a flush, two manifests per shard.
        """
        return reshard(self.core, sharding, compact=compact, engine=engine)

    def upgrade(
        self, *, dry_run: bool = False, quiet: Duration = QUIET, progress: Progress | None = None
    ) -> UpgradeReport:
        """Bring a table of format 1 (weir 0.1.0) to LanceDB's shard ids, format 2.

        Drains every log, folds, verifies that the base alone holds every row and key, seals the old
        shards and stamps the record; after a failure, run it again. A table of format 2 is left
        alone. Refuses (`InvalidInput`, nothing changed) while a writer is at work: one open on this
        handle, or one whose unflushed entry is younger than `quiet`. An idle writer is fenced and
        has to be reopened. With `dry_run` nothing is written. Reads every key at most three times.
        """
        return upgrade(self.core, dry_run=dry_run, quiet=quiet, progress=progress)
