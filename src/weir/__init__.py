"""Durable, fenced writes and fresh reads for Lance tables on object storage."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING

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
from weir.read.scan import Scan
from weir.read.snapshot import Snapshot
from weir.read.stats import ShardStats, TableStats
from weir.records.checkpoints import Checkpoint
from weir.routing.shards import Shard
from weir.routing.writer import TableWriter
from weir.shard.ack import Ack
from weir.shard.decide import WriteCounts
from weir.shard.stats import MemtableStats, WalStats, WriterStats
from weir.shard.writer import ShardWriter
from weir.table import Table
from weir.types import Filter, Keys, Rows, Vector
from weir.upkeep.adopt_shard import AdoptReport
from weir.upkeep.compact.run import CompactionPolicy, CompactReport
from weir.upkeep.gc.report import GcReport
from weir.upkeep.move_wal import WalMoveReport
from weir.upkeep.reshard import ReshardReport
from weir.upkeep.restore import RestoreReport

__all__ = [
    "Ack",
    "AdoptReport",
    "Backpressure",
    "Bookmark",
    "Bucket",
    "Change",
    "Changes",
    "Checkpoint",
    "CheckpointNotFound",
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
    "MemtableStats",
    "MissingEntry",
    "NotAWeirTable",
    "PartialWrite",
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
    "Vector",
    "WalAppender",
    "WalEntry",
    "WalMoveReport",
    "WalOnlyMode",
    "WalStats",
    "WalStoreMismatch",
    "WalTailer",
    "WeirError",
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


# A library is silent until an application asks for its log.
logging.getLogger("weir").addHandler(logging.NullHandler())


if TYPE_CHECKING:
    from weir import spark as spark
else:

    def __getattr__(name: str) -> ModuleType:
        """Spark is loaded when it is asked for: the core works without it."""
        if name == "spark":
            return importlib.import_module("weir.spark")
        raise AttributeError(f"module 'weir' has no attribute {name!r}")
