"""Durable, fenced writes and fresh reads for Lance tables on object storage."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir import aio as aio
    from weir import spark as spark
    from weir.config import IndexConfig, WriterConfig
    from weir.database import Database, connect
    from weir.errors import (
        Backpressure,
        CheckpointNotFound,
        CommitConflict,
        CorruptEntry,
        FencedError,
        InvalidInput,
        KeyConflict,
        MissingEntry,
        NotAWeirTable,
        PartialWrite,
        SchemaMismatch,
        SealedShard,
        SnapshotExpired,
        StoreDenied,
        StoreError,
        StoreUnsuitable,
        UnknownOutcome,
        WalOnlyMode,
        WalStoreMismatch,
        WeirError,
        WriterClosed,
    )
    from weir.format.expiry import Expire
    from weir.format.sharding import Bucket, Identity, Unsharded
    from weir.format.wal_entry import WalEntry
    from weir.log.appender import WalAppender
    from weir.log.tailer import WalTailer
    from weir.making import create, drop, enable, exists, open
    from weir.read.changes import Bookmark, Change, Changes
    from weir.read.loader import Loader
    from weir.read.scan import Scan
    from weir.read.snapshot import Snapshot
    from weir.read.stats import ShardStats, TableStats
    from weir.records.checkpoints import Checkpoint
    from weir.routing.receipt import Receipt
    from weir.routing.shards import Shard
    from weir.routing.writer import TableWriter
    from weir.search.words import Boolean, Match, Phrase, Words
    from weir.shard.ack import Ack
    from weir.shard.request import WriteCounts
    from weir.shard.stats import MemtableStats, WalStats, WriterStats
    from weir.shard.writer import ShardWriter
    from weir.table import Table
    from weir.types import Columns, Filter, Keys, Rows, Vector
    from weir.upkeep.adopt_shard import AdoptReport
    from weir.upkeep.compact.run import CompactionPolicy, CompactReport
    from weir.upkeep.gc.report import GcReport
    from weir.upkeep.move_wal import WalMoveReport
    from weir.upkeep.reshard import ReshardReport
    from weir.upkeep.restore import RestoreReport
    from weir.upkeep.upgrade import UpgradeReport

__all__ = [
    "Ack",
    "AdoptReport",
    "Backpressure",
    "Bookmark",
    "Boolean",
    "Bucket",
    "Change",
    "Changes",
    "Checkpoint",
    "CheckpointNotFound",
    "Columns",
    "CommitConflict",
    "CompactReport",
    "CompactionPolicy",
    "CorruptEntry",
    "Database",
    "Expire",
    "FencedError",
    "Filter",
    "GcReport",
    "Identity",
    "IndexConfig",
    "InvalidInput",
    "KeyConflict",
    "Keys",
    "Loader",
    "Match",
    "MemtableStats",
    "MissingEntry",
    "NotAWeirTable",
    "PartialWrite",
    "Phrase",
    "Receipt",
    "ReshardReport",
    "RestoreReport",
    "Rows",
    "Scan",
    "SchemaMismatch",
    "SealedShard",
    "Shard",
    "ShardStats",
    "ShardWriter",
    "Snapshot",
    "SnapshotExpired",
    "StoreDenied",
    "StoreError",
    "StoreUnsuitable",
    "Table",
    "TableStats",
    "TableWriter",
    "UnknownOutcome",
    "Unsharded",
    "UpgradeReport",
    "Vector",
    "WalAppender",
    "WalEntry",
    "WalMoveReport",
    "WalOnlyMode",
    "WalStats",
    "WalStoreMismatch",
    "WalTailer",
    "WeirError",
    "Words",
    "WriteCounts",
    "WriterClosed",
    "WriterConfig",
    "WriterStats",
    "connect",
    "create",
    "drop",
    "enable",
    "exists",
    "open",
]

_HOMES = {
    "Ack": "weir.shard.ack",
    "AdoptReport": "weir.upkeep.adopt_shard",
    "Backpressure": "weir.errors",
    "Bookmark": "weir.read.changes",
    "Boolean": "weir.search.words",
    "Bucket": "weir.format.sharding",
    "Change": "weir.read.changes",
    "Changes": "weir.read.changes",
    "Checkpoint": "weir.records.checkpoints",
    "CheckpointNotFound": "weir.errors",
    "Columns": "weir.types",
    "CommitConflict": "weir.errors",
    "CompactReport": "weir.upkeep.compact.run",
    "CompactionPolicy": "weir.upkeep.compact.run",
    "CorruptEntry": "weir.errors",
    "Database": "weir.database",
    "Expire": "weir.format.expiry",
    "FencedError": "weir.errors",
    "Filter": "weir.types",
    "GcReport": "weir.upkeep.gc.report",
    "Identity": "weir.format.sharding",
    "IndexConfig": "weir.config",
    "InvalidInput": "weir.errors",
    "KeyConflict": "weir.errors",
    "Keys": "weir.types",
    "Loader": "weir.read.loader",
    "Match": "weir.search.words",
    "MemtableStats": "weir.shard.stats",
    "MissingEntry": "weir.errors",
    "NotAWeirTable": "weir.errors",
    "PartialWrite": "weir.errors",
    "Phrase": "weir.search.words",
    "Receipt": "weir.routing.receipt",
    "ReshardReport": "weir.upkeep.reshard",
    "RestoreReport": "weir.upkeep.restore",
    "Rows": "weir.types",
    "Scan": "weir.read.scan",
    "SchemaMismatch": "weir.errors",
    "SealedShard": "weir.errors",
    "Shard": "weir.routing.shards",
    "ShardStats": "weir.read.stats",
    "ShardWriter": "weir.shard.writer",
    "Snapshot": "weir.read.snapshot",
    "SnapshotExpired": "weir.errors",
    "StoreDenied": "weir.errors",
    "StoreError": "weir.errors",
    "StoreUnsuitable": "weir.errors",
    "Table": "weir.table",
    "TableStats": "weir.read.stats",
    "TableWriter": "weir.routing.writer",
    "UnknownOutcome": "weir.errors",
    "Unsharded": "weir.format.sharding",
    "UpgradeReport": "weir.upkeep.upgrade",
    "Vector": "weir.types",
    "WalAppender": "weir.log.appender",
    "WalEntry": "weir.format.wal_entry",
    "WalMoveReport": "weir.upkeep.move_wal",
    "WalOnlyMode": "weir.errors",
    "WalStats": "weir.shard.stats",
    "WalStoreMismatch": "weir.errors",
    "WalTailer": "weir.log.tailer",
    "WeirError": "weir.errors",
    "Words": "weir.search.words",
    "WriteCounts": "weir.shard.request",
    "WriterClosed": "weir.errors",
    "WriterConfig": "weir.config",
    "WriterStats": "weir.shard.stats",
    "connect": "weir.database",
    "create": "weir.making",
    "drop": "weir.making",
    "enable": "weir.making",
    "exists": "weir.making",
    "open": "weir.making",
}
"""The module of each public name; a test compares it with the imports above."""
_PACKAGES = ("aio", "spark")

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
