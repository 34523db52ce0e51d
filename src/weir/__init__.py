"""Durable, fenced writes and fresh reads for Lance tables on object storage."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from weir.config import IndexConfig, WriterConfig
from weir.errors import (
    Backpressure,
    CheckpointNotFound,
    CommitConflict,
    CorruptEntry,
    FencedError,
    InvalidInput,
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
from weir.format.sharding import Bucket, Identity, Unsharded
from weir.format.wal_entry import WalEntry
from weir.log.appender import WalAppender
from weir.log.tailer import WalTailer
from weir.read.changes import Bookmark, Change
from weir.read.scan import Scan
from weir.read.snapshot import Snapshot
from weir.records.checkpoints import Checkpoint
from weir.routing.shards import Shard
from weir.routing.writer import TableWriter
from weir.shard.ack import Ack
from weir.shard.writer import ShardWriter
from weir.table.making import create, enable, open
from weir.table.table import Table
from weir.upkeep.compact.run import CompactionPolicy, CompactReport
from weir.upkeep.gc.report import GcReport

__all__ = [
    "Ack",
    "Backpressure",
    "Bookmark",
    "Bucket",
    "Change",
    "Checkpoint",
    "CheckpointNotFound",
    "CommitConflict",
    "CompactReport",
    "CompactionPolicy",
    "CorruptEntry",
    "FencedError",
    "GcReport",
    "Identity",
    "IndexConfig",
    "InvalidInput",
    "MissingEntry",
    "NotAWeirTable",
    "PartialWrite",
    "Scan",
    "SchemaMismatch",
    "SealedShard",
    "Shard",
    "ShardWriter",
    "Snapshot",
    "SnapshotExpired",
    "StoreDenied",
    "StoreError",
    "StoreUnsuitable",
    "Table",
    "TableWriter",
    "UnknownOutcome",
    "Unsharded",
    "WalAppender",
    "WalEntry",
    "WalOnlyMode",
    "WalStoreMismatch",
    "WalTailer",
    "WeirError",
    "WriterClosed",
    "WriterConfig",
    "create",
    "enable",
    "open",
]


# A library is silent until an application asks for its log.
logging.getLogger("weir").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Spark is loaded when it is asked for: the core works without it."""
    if name == "spark":
        return importlib.import_module("weir.spark")
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
