"""Reads what the plan needs from inside objects: entry epochs and tokens, manifest authors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.manifest import decode_manifest
from weir.log.headers import header_at
from weir.log.site import ShardSite
from weir.shard.tokens import Tokens, tokens_in_log
from weir.store.api import ObjectMissing
from weir.types import Version
from weir.upkeep.gc.epochs import find_runs
from weir.upkeep.gc.plan import Ages, Run, ShardState, replay_point

_WORKERS: Final = 16
_CHUNK: Final = 256


def epoch_runs(site: ShardSite, state: ShardState, ages: Ages) -> Sequence[Run]:
    """The runs of epochs that decide what goes: those of young entries that could be deleted."""
    if not ages.keep_first_entries or not len(state.wal):
        return ()
    young = state.wal_ages < ages.fence_retention
    matters = np.flatnonzero((state.wal.positions < replay_point(state.retained)) & young)
    if not len(matters):
        return ()
    # One entry more at the front shows whether the first one begins an epoch. The range ends with
    # the log, since the epoch after a run shows whether an epoch in between left no entry.
    first = max(0, int(matters[0]) - 1)

    def read(indexes: Sequence[int]) -> list[int | None]:
        positions = [int(state.wal.positions[i]) for i in indexes]
        return site.env.threads.map(lambda p: _epoch(site, p), positions, workers=_WORKERS)

    return find_runs(first, len(state.wal) - 1, read)


def _epoch(site: ShardSite, position: int) -> int | None:
    try:
        header = header_at(site, position)
    except ObjectMissing:
        return None
    return None if header is None else header.epoch


def record_tokens(site: ShardSite, positions: list[int]) -> None:
    """Make exactly-once tokens outlive their entries (P-2). Called before the floor passes them.

    weir records tokens when it flushes; a native writer that flushed weir's rows did not. Only
    shards that use tokens pay: a ranged read per entry, and a whole read where a token may be.
    An entry at a position already collected can only be a zombie's, and its rows do not count.
    """
    folders = (paths.tokens_dir(site.shard), paths.job_tokens_dir(site.shard))
    # A writer puts a note there before its first token, so that none is missed (P-6).
    if not any(site.store.list_folder(folder)[0] for folder in folders):
        return
    tokens = Tokens(site)
    for app, number in sorted(tokens_in_log(site, positions).items()):
        recorded = tokens.load(app)
        if recorded is None or recorded < number:
            tokens.record(app, number)


def is_native(site: ShardSite, state: ShardState, ages: Ages) -> bool:
    """True when a version that may go soon was written by a program that knows no floors.

    Such a program may stall between reading a version and writing the next, and does not notice
    that the next version was collected (G-6); so its shards keep old versions as long as first
    entries.
    """
    wanted = sorted(
        (
            version
            for version, stored in state.versions.items()
            # weir, too, writes version 1 without a commit id.
            if 1 < version <= state.floor and state.now - stored.time < ages.fence_retention
        ),
        reverse=True,
    )
    for start in range(0, len(wanted), _CHUNK):
        where = [
            paths.manifest_path(site.shard, Version(v)) for v in wanted[start : start + _CHUNK]
        ]
        for path, data in zip(where, site.store.get_many(where), strict=True):
            if data is None:
                continue
            try:
                if not decode_manifest(data, path=path).commit_id:
                    return True
            except CorruptEntry:
                return True  # its author is unknown
    return False
