"""Durable, fenced writes and fresh reads for Lance tables on object storage."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from weir.env import default_variable

if TYPE_CHECKING:
    from weir import aio as aio
    from weir import otel as otel
    from weir import spark as spark
    from weir.config import IndexConfig as IndexConfig
    from weir.config import WriterConfig as WriterConfig
    from weir.database import Database as Database
    from weir.database import connect as connect
    from weir.errors import Backpressure as Backpressure
    from weir.errors import CheckpointNotFound as CheckpointNotFound
    from weir.errors import CommitConflict as CommitConflict
    from weir.errors import CorruptEntry as CorruptEntry
    from weir.errors import FencedError as FencedError
    from weir.errors import Interrupted as Interrupted
    from weir.errors import InvalidInput as InvalidInput
    from weir.errors import KeyConflict as KeyConflict
    from weir.errors import MissingEntry as MissingEntry
    from weir.errors import NotAWeirTable as NotAWeirTable
    from weir.errors import NotOwner as NotOwner
    from weir.errors import PartialWrite as PartialWrite
    from weir.errors import SchemaMismatch as SchemaMismatch
    from weir.errors import SealedShard as SealedShard
    from weir.errors import SnapshotExpired as SnapshotExpired
    from weir.errors import StoreDenied as StoreDenied
    from weir.errors import StoreError as StoreError
    from weir.errors import StoreUnsuitable as StoreUnsuitable
    from weir.errors import UnknownOutcome as UnknownOutcome
    from weir.errors import WalOnlyMode as WalOnlyMode
    from weir.errors import WalStoreMismatch as WalStoreMismatch
    from weir.errors import WeirError as WeirError
    from weir.errors import WriterClosed as WriterClosed
    from weir.format.expiry import Expire as Expire
    from weir.format.schema_forms import SchemaLike as SchemaLike
    from weir.format.sharding import Bucket as Bucket
    from weir.format.sharding import Identity as Identity
    from weir.format.sharding import PerWriter as PerWriter
    from weir.format.sharding import Unsharded as Unsharded
    from weir.format.wal_entry import WalEntry as WalEntry
    from weir.lake.base.indexes import IndexKind as IndexKind
    from weir.lake.base.indexes import TableIndex as TableIndex
    from weir.log.appender import WalAppender as WalAppender
    from weir.log.tailer import WalTailer as WalTailer
    from weir.making import create as create
    from weir.making import drop as drop
    from weir.making import enable as enable
    from weir.making import exists as exists
    from weir.making import open as open
    from weir.read.changes import Bookmark as Bookmark
    from weir.read.changes import Change as Change
    from weir.read.changes import Changes as Changes
    from weir.read.loader import Loader as Loader
    from weir.read.scan import Scan as Scan
    from weir.read.snapshot import Snapshot as Snapshot
    from weir.read.stats import ConsumerStats as ConsumerStats
    from weir.read.stats import ShardStats as ShardStats
    from weir.read.stats import TableStats as TableStats
    from weir.records.checkpoints import Checkpoint as Checkpoint
    from weir.routing.receipt import Receipt as Receipt
    from weir.routing.shards import Shard as Shard
    from weir.routing.writer import TableWriter as TableWriter
    from weir.scraping import metrics as metrics
    from weir.search.words import Boolean as Boolean
    from weir.search.words import Match as Match
    from weir.search.words import Phrase as Phrase
    from weir.search.words import Words as Words
    from weir.shard.ack import Ack as Ack
    from weir.shard.request import WriteCounts as WriteCounts
    from weir.shard.stats import MemtableStats as MemtableStats
    from weir.shard.stats import WalStats as WalStats
    from weir.shard.stats import WriterStats as WriterStats
    from weir.shard.writer import ShardWriter as ShardWriter
    from weir.table import Table as Table
    from weir.types import Columns as Columns
    from weir.types import Filter as Filter
    from weir.types import Keys as Keys
    from weir.types import Params as Params
    from weir.types import Rows as Rows
    from weir.types import Vector as Vector
    from weir.upkeep.adopt_shard import AdoptReport as AdoptReport
    from weir.upkeep.columns import NewColumns as NewColumns
    from weir.upkeep.compact.policy import CompactionPolicy as CompactionPolicy
    from weir.upkeep.compact.run import CompactReport as CompactReport
    from weir.upkeep.due import CheckpointSchedule as CheckpointSchedule
    from weir.upkeep.due import Debt as Debt
    from weir.upkeep.due import DueJob as DueJob
    from weir.upkeep.due import KeepPolicy as KeepPolicy
    from weir.upkeep.due import Upkeep as Upkeep
    from weir.upkeep.due import due as due
    from weir.upkeep.gc.report import GcReport as GcReport
    from weir.upkeep.history import HistoryEntry as HistoryEntry
    from weir.upkeep.history import HistoryKind as HistoryKind
    from weir.upkeep.move_wal import WalMoveReport as WalMoveReport
    from weir.upkeep.perform import JobReport as JobReport
    from weir.upkeep.reshard import ReshardReport as ReshardReport
    from weir.upkeep.restore import RestoreReport as RestoreReport

_NAMES = {
    "weir.config": "IndexConfig WriterConfig",
    "weir.database": "Database connect",
    "weir.errors": (
        "Backpressure CheckpointNotFound CommitConflict CorruptEntry FencedError "
        "Interrupted InvalidInput KeyConflict MissingEntry NotAWeirTable NotOwner PartialWrite "
        "SchemaMismatch SealedShard SnapshotExpired StoreDenied StoreError StoreUnsuitable "
        "UnknownOutcome WalOnlyMode WalStoreMismatch WeirError WriterClosed"
    ),
    "weir.format.expiry": "Expire",
    "weir.format.schema_forms": "SchemaLike",
    "weir.format.sharding": "Bucket Identity PerWriter Unsharded",
    "weir.format.wal_entry": "WalEntry",
    "weir.lake.base.indexes": "IndexKind TableIndex",
    "weir.log.appender": "WalAppender",
    "weir.log.tailer": "WalTailer",
    "weir.making": "create drop enable exists open",
    "weir.read.changes": "Bookmark Change Changes",
    "weir.read.loader": "Loader",
    "weir.read.scan": "Scan",
    "weir.read.snapshot": "Snapshot",
    "weir.read.stats": "ConsumerStats ShardStats TableStats",
    "weir.records.checkpoints": "Checkpoint",
    "weir.routing.receipt": "Receipt",
    "weir.routing.shards": "Shard",
    "weir.routing.writer": "TableWriter",
    "weir.scraping": "metrics",
    "weir.search.words": "Boolean Match Phrase Words",
    "weir.shard.ack": "Ack",
    "weir.shard.request": "WriteCounts",
    "weir.shard.stats": "MemtableStats WalStats WriterStats",
    "weir.shard.writer": "ShardWriter",
    "weir.table": "Table",
    "weir.types": "Columns Filter Keys Params Rows Vector",
    "weir.upkeep.adopt_shard": "AdoptReport",
    "weir.upkeep.columns": "NewColumns",
    "weir.upkeep.compact.policy": "CompactionPolicy",
    "weir.upkeep.compact.run": "CompactReport",
    "weir.upkeep.due": "CheckpointSchedule Debt DueJob KeepPolicy Upkeep due",
    "weir.upkeep.gc.report": "GcReport",
    "weir.upkeep.history": "HistoryEntry HistoryKind",
    "weir.upkeep.move_wal": "WalMoveReport",
    "weir.upkeep.perform": "JobReport",
    "weir.upkeep.reshard": "ReshardReport",
    "weir.upkeep.restore": "RestoreReport",
}
"""The public names in each module; a test compares them with the imports above."""
_HOMES = dict(sorted((name, of) for of, names in _NAMES.items() for name in names.split()))
_PACKAGES = ("aio", "otel", "spark")
__all__ = list(_HOMES)

# Lance reads this when it is first imported, by weir or by the application after weir. For each
# commit on a table with a MemWAL index entry it logs an error about an index "without fields".
default_variable("LANCE_LOG", "warn,lance::index=off")

# A library is silent until an application configures logging.
logging.getLogger("weir").addHandler(logging.NullHandler())

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a name on first use: `import weir` alone loads neither Lance nor Arrow.

        The same holds for `weir.aio` and `weir.spark`: the core works without Spark.
        """
        if name in _PACKAGES:
            return importlib.import_module(f"weir.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'weir' has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names only."""
    return [*__all__, *_PACKAGES]
