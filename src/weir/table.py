"""`Table`, the object users hold. Each verb lives in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import Duration
from weir.format.expiry import Expire
from weir.format.sharding import Sharding, Value
from weir.lake.base.indexes import TEXT, IndexKind, IndexSpec, TableIndex
from weir.lake.params import bind_filter
from weir.read.changes import Bookmark, Changes
from weir.read.lookup import get_rows
from weir.read.scan import OrderBy, Scan
from weir.read.search import hybrid_search, search
from weir.read.snapshot import Freshness, Snapshot, take_snapshot
from weir.read.stats import TableStats, collect_stats
from weir.records.checkpoints import Checkpoint, Ref, Scope
from weir.records.consumers import TTL
from weir.routing.core import Core
from weir.routing.opening import Options
from weir.routing.own import ShardName, own_shards
from weir.routing.placing import placing
from weir.routing.shards import Shard, all_shards, find_shard
from weir.routing.writer import TableWriter
from weir.search.hybrid import RANK_CONSTANT, Fusion
from weir.search.options import SearchOptions
from weir.search.words import Words
from weir.types import Columns, Filter, Key, Keys, Params, Row, Rows, Vector
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep import indexes
from weir.upkeep.adopt_shard import AdoptReport, Order, adopt_shard
from weir.upkeep.checkpoint import Moment
from weir.upkeep.clone import clone
from weir.upkeep.columns import NewColumns, add_columns, drop_columns, rename_column
from weir.upkeep.compact.run import CompactReport, compact
from weir.upkeep.consumers import drop_consumer, open_feed
from weir.upkeep.defaults import FENCE_RETENTION, LEASE, MIN_AGE
from weir.upkeep.exclusive import before_writing
from weir.upkeep.expire import set_expire
from weir.upkeep.gc.collect import gc
from weir.upkeep.gc.report import GcReport, Kind, Veto
from weir.upkeep.gc.report import Progress as GcProgress
from weir.upkeep.gc.run import WORKERS
from weir.upkeep.history import HistoryEntry, history
from weir.upkeep.move_wal import WalMoveReport, move_wal
from weir.upkeep.parents import discard, release_clone
from weir.upkeep.reshard import ReshardReport, reshard
from weir.upkeep.restore import RestoreReport, restore
from weir.upkeep.tasks import Progress, Runner, runner_of

if TYPE_CHECKING:
    from weir.read.sql import Engine


class Table:
    """A table on object storage. Made by `weir.create`, `weir.open` or `weir.enable`.

    Safe to share between threads. Holds no lock and claims nothing; only writers do.
    """

    def __init__(self, core: Core) -> None:
        """Use `weir.open`."""
        self.core = core
        core.before_writing = before_writing  # guard: X-1

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
        """The columns, as of the latest base version. One listing, one head."""
        self.core.record_number()  # guard: C-16 test_drop
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
        """The rule by which rows expire; None: they never do. One listing, one head."""
        self.core.record_number()  # guard: C-16 test_drop
        return self.core.base().expire

    def set_expire(self, expire: Expire | None) -> None:
        """Set the rule by which rows expire, None for never; readers everywhere see it at once.
        Checkpoints keep their own. `InvalidInput` if the column holds no times. One base commit.
        """
        set_expire(self.core, expire)

    def shards(self) -> list[Shard]:
        """Every shard, those of the routing first.

        One listing, one head, and two requests for each shard the record does not list.
        """
        self.core.record_number()  # C-16: of this table, not of one made here since
        return all_shards(self.core)

    def shard(self, id_or_value: UUID | Value) -> Shard:
        """The shard with that id, bucket or value of the identity column, created if need be.

        Raises `InvalidInput`, naming what there is, when there is no such shard.
        """
        return find_shard(self.core, id_or_value)

    def shard_of(self, row_or_key: Row | Key) -> Shard:
        """The shard that takes a row, given as a dict, an object with named fields, or its key.

        Exactly the shard that a writer of this handle sends it to. A dict needs only the column
        that the table is sharded by. No request, except one listing at the first call of a handle;
        microseconds. The answer is of the routing that this handle knows: the one it was opened
        with, or a newer one since `refresh`, a checkpoint or a reshard through it, or since a
        writer of it met a reshard. Whoever was sent a row by an older routing refuses it
        (`NotOwner`, `SealedShard`), and never takes it. With `Identity`, a shard whose value had no
        row yet is named and not made; `table.shard(value)` makes it.

        Raises `InvalidInput` or `SchemaMismatch` for what a put would refuse, and for a key of
        another length than the table's.
        """
        return placing(self.core).ways(self.core).shard_of(row_or_key)

    def shards_of(self, batch: Rows | Keys) -> list[Shard]:
        """For each of these rows or keys the shard that takes it, in order; see `shard_of`.

        Takes what `put` and `delete` take: Arrow, DataFrames, rows, keys. The same as `shard_of`
        of each, and much faster for many: hashing is vectorized.
        """
        return placing(self.core).ways(self.core).shards_of(batch)

    def refresh(self) -> bool:
        """Learn the table's current routing and defaults; True when the routing has changed.

        For processes that route (`shard_of`) and do not write: readers and writers find out by
        themselves. Raises `NotAWeirTable` when the table was dropped. One list, one get.
        """
        known = self.core.record.routing_version
        return self.core.refresh().routing_version != known

    def stats(self) -> TableStats:
        """Per shard: epoch, WAL tip, lag, generations, sizes, pins.

        About ten requests a shard, and up to 32 more for the sizes of unflushed entries.
        """
        return collect_stats(self.core)

    def history(self, limit: int = 20, *, upkeep: bool = False) -> list[HistoryEntry]:
        """What happened to the table, newest first: the versions of its base that still exist, what
        made each, and which checkpoints pin it.

        At most `limit` entries. Versions that hold only notes of weir's are left out, unless a
        checkpoint pins them or `upkeep` is true. Rows that are not compacted yet are in no version.
        Raises `InvalidInput` for a limit below 1. Two listings, a read for each checkpoint, and one
        for each version looked at: about five for an entry, ten at most.
        """
        return history(self.core, limit, upkeep=upkeep)

    # -- reading --------------------------------------------------------------------------------

    def scan(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        params: Params | None = None,
        batch_size: int | None = None,
        offset: int = 0,
        order_by: OrderBy | None = None,
    ) -> Scan:
        """A read of the newest row of each key; nothing is read before the scan is consumed.

        `columns` are names, or a dict of names and SQL: `{"id": "id", "total": "price * qty"}`,
        computed by Lance for the rows of every level.
        `filter` is SQL text as in Lance, or a pyarrow expression; it sees newest rows only.
        `params` are values for names in the text: `"user = $u"` takes `{"u": user}`.
        `freshness`: "base", "flushed" (+ SSTables) or "durable" (+ every acknowledged row).
        `checkpoint`: the table as it was then; see `Moment`. The order of rows is unspecified,
        unless `order_by` sorts them, in memory. Requests: those of `take_snapshot`.
        """
        return Scan(
            self.core,
            columns=columns,
            filter=bind_filter(filter, params),
            limit=limit,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
            batch_size=batch_size,
            offset=offset,
            order_by=order_by,
        )

    def count(
        self,
        filter: Filter | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        params: Params | None = None,
    ) -> int:
        """The number of rows that pass the filter; see `Scan.count`."""
        return self.scan(None, filter, None, freshness, checkpoint, params=params).count()

    def get(
        self,
        keys: Keys,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
    ) -> pa.Table:
        """The newest rows of `keys`, in the order of `keys`, each once; missing keys are left out.

        `keys`: values, tuples, dicts, or Arrow. Only sources that can hold one of them are read.
        """
        return get_rows(
            self.core,
            keys,
            columns=columns,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
        )

    def changes(
        self,
        since: Bookmark | str | None = None,
        follow: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        *,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
        expired: bool = False,
        consumer: str | None = None,
        consumer_ttl: Duration = TTL,
    ) -> Changes:
        """The log of all shards as an iterator of `Change`, from `since` (a `Bookmark`) on.

        None starts at the oldest entry that still exists, "now" after the newest. With `follow` it
        waits for more until `stop()` is true. Raises `SnapshotExpired` when entries after the
        bookmark were collected, or rows came or went without the log since (a load). `expired` also
        reports rows that expire, found by a scan by time at the end, or every 10 s with `follow`.
        Rows that a compaction drops before that scan are not reported.

        With a `consumer`, its place is kept on the store, and collection waits for it: entries that
        it has not read stay, until it has not moved for `consumer_ttl`. `since` then says where a
        new consumer begins, and one that exists goes on from its place; a bookmark counts for both.
        When a place is saved: see `Changes`. One process at a time uses a name; each gets all
        changes. Raises `SnapshotExpired` when the consumer has expired. Beginning takes two
        requests a shard and one for a new consumer, two for one that exists, and some
        thirteen a shard for "now".
        """
        feed = open_feed(
            self.core,
            since,
            consumer=consumer,
            ttl=consumer_ttl,
            follow=follow,
            poll=poll,
            stop=stop,
            expired=expired,
        )
        return feed if consumer is None and since != "now" else self._begun(feed)

    def follow(
        self,
        consumer: str | None = None,
        since: Bookmark | str | None = None,
        *,
        once: bool = False,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
        expired: bool = False,
        consumer_ttl: Duration = TTL,
    ) -> Changes:
        """The rows of now, then every change from exactly that moment, in order across reshards.

        The rows come as puts with `of_snapshot`. They are read at a checkpoint, which is made now
        and deleted after the last of them. With a `consumer` that has them, or a bookmark, only
        changes come. After a crash among the rows the same rows come again from the first, then
        every change since: with a key the copy is right; without one, empty it when its last
        bookmark says `snapshot`. Without `consumer` collection does not wait: see `changes`.

        Waits for more until `stop()` is true; with `once` it ends when there is no more. Costs a
        checkpoint, a scan, and then what `changes` costs.
        """
        feed = open_feed(
            self.core,
            since,
            consumer=consumer,
            ttl=consumer_ttl,
            follow=not once,
            poll=poll,
            stop=stop,
            expired=expired,
            with_rows=True,
        )
        return self._begun(feed)

    def _begun(self, feed: Changes) -> Changes:
        """A feed to whose caller it matters when it begins: now."""
        feed.begin()
        return feed

    def drop_consumer(self, name: str) -> None:
        """End a named consumer: nothing is kept for it from now on, and its name is free.

        A feed that uses it raises `SnapshotExpired` when it saves its place. `InvalidInput`, naming
        those that there are, when there is none of that name. `stats` lists them. Three requests.
        """
        drop_consumer(self.core, name)

    def snapshot(self, freshness: Freshness = "durable") -> Snapshot:
        """A consistent cut, for the planners of other engines."""
        return take_snapshot(self.core, freshness)

    def search(
        self,
        column: str,
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        params: Params | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
        offset: int = 0,
        distance_range: tuple[float | None, float | None] | None = None,
    ) -> pa.Table:
        """The `k` rows nearest to a vector, or matching text best, best first.

        Returns `columns` (all when None), and `_distance` (l2 squared, 1 - cosine, or 1 - dot) or
        `_score` (BM25 by the statistics of all levels). Plain text finds rows with any of its
        words; `Match`, `Phrase` and `Boolean` say more. Several queries, a list or a matrix, are
        answered from one snapshot, `k` rows each, and `query_index` says which query a row answers.
        `offset` skips the best rows; `distance_range` is (lower, upper), the upper bound excluded.
        `nprobes` (20), `refine_factor` (10) and `exact` say how thoroughly an approximate index is
        searched; a small base, and rows newer than the index, are searched exactly.
        Requests: a scan's snapshot, then the index pages and rows needed.
        """
        passing = bind_filter(filter, params)
        options = SearchOptions(
            k, passing, columns, metric, nprobes, refine_factor, exact, offset, distance_range
        )
        pinned = checkpoints.pinned(self.core, checkpoint)
        return search(self.core, column, query, options, freshness, pinned)

    def hybrid_search(
        self,
        queries: Mapping[str, Words | Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        params: Params | None = None,
        weights: Mapping[str, float] | None = None,
        rank_constant: int = RANK_CONSTANT,
        depth: int | None = None,
        offset: int = 0,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
    ) -> pa.Table:
        """The `k` best rows of several rankings of one snapshot, fused by key.

        `queries` has a query for each column, as `search` takes them. A row gets
        `weight / (rank_constant + rank)` from each ranking that has it among its first `depth` rows
        (by default four times `k`, at least 100); `_relevance_score` is the sum. Pages by `offset`
        show each row once. Rows beyond `depth` follow on later pages, unless `depth` was given.
        `InvalidInput` for an append-only table. Requests: those of a search for each column, with
        one snapshot.
        """
        passing = bind_filter(filter, params)
        options = SearchOptions(k, passing, columns, metric, nprobes, refine_factor, exact, offset)
        fusion = Fusion(weights, rank_constant, depth)
        pinned = checkpoints.pinned(self.core, checkpoint)
        return hybrid_search(self.core, queries, fusion, options, freshness, pinned)

    def sql(
        self,
        query: str,
        *,
        params: Params | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        engine: Engine | None = None,
    ) -> pa.Table:
        """The result of one SQL query over the table, which is called `t` and by its own name.

        Run by DuckDB, else by DataFusion, in this process: `pip install 'lance-weir[sql]'`;
        `engine` chooses one. The dialect is the engine's; `params` are values for names such as
        `$u` in it. Every mention of the table is the same snapshot. Columns and filters are pushed
        down where the engine does. The query reads this table and nothing else, and changes
        nothing: `InvalidInput` for any other statement, for a query that fails, and if no engine is
        installed. Requests: those of a scan for each mention of the table.
        """
        from weir.read.sql import run_sql  # loads pandas, as pyarrow.dataset does

        return run_sql(
            self.core,
            query,
            params=params,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
            engine=engine,
        )

    # -- writing ---------------------------------------------------------------------------------

    def writer(
        self, config: WriterConfig | None = None, *, shards: Iterable[ShardName] | None = None
    ) -> TableWriter:
        """A writer that routes rows to shards and opens (claims) each shard at its first row.

        With `shards`, given by their values, ids or `Shard`s, it takes the rows of those only, and
        raises `NotOwner` for others; of an empty list, for all. `InvalidInput` for a shard that the
        table does not have. Opening costs a list and a get more, and claims nothing.
        """
        own = None if shards is None else own_shards(self.core, shards)
        return TableWriter(self.core, config, before_writing(self.core), own)

    # -- columns ---------------------------------------------------------------------------------

    def add_columns(self, columns: NewColumns) -> None:
        """Add columns: pyarrow fields, null in every row, or a dict of names and SQL over the row.

        Fields cost one commit. Writers that are open go on with the columns they know, and their
        rows have null in the new ones; `update` and `update_where` through them raise
        `CommitConflict`. Open new writers to fill the columns.
        A dict also computes the column for every row that exists, which writes each row again, as
        `update_where` does: it claims every shard, so open writers are fenced. Keyed tables only.
        Raises `InvalidInput`, with nothing written, for a name that is taken, a type that Lance
        cannot store, a column that is not nullable, or wrong SQL; `CommitConflict` when commits
        beside it were in the way five times, or a restore is unfinished.
        """
        add_columns(self.core, columns)

    def drop_columns(self, names: str | Sequence[str]) -> None:
        """Drop columns, and their indexes. Rows everywhere read without them at once; the values
        leave the files as compaction and `gc` replace them, and checkpoints keep theirs.

        Open writers go on putting and deleting, and the values of dropped columns are left out;
        their own reads and writes that look first raise `CommitConflict`: open new ones. Raises
        `InvalidInput`, with nothing written, for columns that do not exist, and those of the key,
        the sharding or the expiry rule; `CommitConflict` as `add_columns` does. One commit.
        """
        drop_columns(self.core, names)

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column; its rows, indexes and expiry rule stay. Open writers go on under the old
        name, with the limits of `drop_columns`, and readers see their rows under the new one.

        Raises `InvalidInput`, with nothing written, for a name that is unknown, taken or not
        possible, and for columns of the key or the sharding; `CommitConflict` as `add_columns`
        does. One commit.
        """
        rename_column(self.core, old, new)

    # -- indexes ---------------------------------------------------------------------------------

    def create_index(
        self,
        column: str,
        kind: IndexKind | None = None,
        name: str | None = None,
        replace: bool = False,  # noqa: FBT001, FBT002  Lance's spelling
        *,
        metric: str | None = None,
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
    ) -> str:
        """Make an index on a column of the base, and return its name.

        `kind` None chooses by the column: "btree" for a plain one, "label_list" for a list, for
        vectors "ivf_flat", or "ivf_pq" from 100,000 rows on. `metric` ("l2", "cosine" or "dot"),
        `num_partitions` and `num_sub_vectors` are for vectors. No search or filter changes its
        answer. Rows are added to it by `compact`; writers opened from now on build it into their
        SSTables. Raises `InvalidInput`, with nothing written, for a column, kind or name that does
        not fit, or when the index exists, unless `replace`; `CommitConflict` when commits beside it
        were in the way five times. Reads the column of the whole base; one commit.
        """
        spec = IndexSpec(column, kind, name, replace, metric, num_partitions, num_sub_vectors)
        return indexes.create_index(self.core, spec)

    def create_fts_index(
        self,
        column: str,
        *,
        name: str | None = None,
        replace: bool = False,
        with_position: bool = False,
        base_tokenizer: str = "simple",
        language: str = "English",
        max_token_length: int | None = 40,
        lower_case: bool = True,
        stem: bool = True,
        remove_stop_words: bool = True,
        ascii_folding: bool = True,
        min_ngram_length: int = 3,
        max_ngram_length: int = 3,
        prefix_only: bool = False,
    ) -> str:
        """Make a full-text index on a text column of the base, and return its name.

        The options are Lance's and say what the words of a text are; searches of rows that no index
        covers use the same ones. `with_position` makes phrases faster to find. Otherwise like
        `create_index`.
        """
        text: dict[str, bool | int | str | None] = {
            "with_position": with_position,
            "base_tokenizer": base_tokenizer,
            "language": language,
            "max_token_length": max_token_length,
            "lower_case": lower_case,
            "stem": stem,
            "remove_stop_words": remove_stop_words,
            "ascii_folding": ascii_folding,
            "min_ngram_length": min_ngram_length,
            "max_ngram_length": max_ngram_length,
            "prefix_only": prefix_only,
        }
        return indexes.create_index(
            self.core, IndexSpec(column, TEXT, name, replace=replace, text=text)
        )

    def indexes(self) -> list[TableIndex]:
        """The indexes of the base, by name, with the rows that each covers. Two listings and a
        head."""
        return indexes.indexes(self.core)

    def drop_index(self, name: str) -> None:
        """Drop an index; searches and filters then read the rows. A clone drops it for itself
        alone. Raises `InvalidInput`, which names the indexes there are; `CommitConflict` as
        `create_index` does. One commit.
        """
        indexes.drop_index(self.core, name)

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
        takes a dozen more. Raises `CommitConflict` while a restore is unfinished, `CorruptEntry`
        when another program removed rows that the base held: the checkpoint would lack them.
        """
        return checkpoints.create(self.core, scope=scope, name=name, ttl=ttl)

    def checkpoints(self) -> list[Checkpoint]:
        """The existing checkpoints. One head, one listing, one read for each."""
        return checkpoints.checkpoints(self.core)

    def delete_checkpoint(self, checkpoint: Ref) -> None:
        """Delete a checkpoint, or all with that name; it is no error if it is already gone.

        A clone's pin is deleted only by its id; the files the clone shares then lose their
        protection. `CommitConflict` for one that an unfinished restore needs.
        """
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

        The base is shared by reference, so a clone of any size costs a few small objects, and its
        files stay pinned here until the clone shares none of them; with `deep` it is copied and
        nothing is shared. Uncompacted SSTables and the pinned part of the log are copied. The
        destination may be another bucket or kind of store. Without `checkpoint` a temporary one of
        scope "durable" is made. Raises `InvalidInput` when the destination is taken, is inside a
        table, or was begun as another clone; `MissingEntry` when rows of the checkpoint were lost
        with a WAL store, unless `accept_loss` (recorded); `StoreUnsuitable` for a store without
        put-if-absent (probed with 60 requests). After a failure, run it again.
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
        """Release the pins that a clone still holds here, by your word; returns their ids.

        For a clone that was deleted or never finished, or whose disk nobody will mount again; the
        next collection deletes the files it shared. `InvalidInput` when it holds none here, or
        still exists and shares files.
        """
        return release_clone(self.core, uri)

    def discard_clone(self, uri: str) -> None:
        """Remove an unfinished clone, its pins in parents first; refuses a finished one."""
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
        in memory (what Spark and WAL-only writers wrote). True: all of them, for which every shard
        whose log holds rows and may get more is claimed, and its writer fenced (its rows are safe).
        False: only those of sealed shards. `report.notes` names what stays in a log.
        Expired rows are dropped. `cluster` sorts new files by key. `indexes` adds the new rows to
        the base's indexes. `rewrite` also rewrites files that are small or hold deleted rows; None:
        when there are many such. A run that finds another run's claim, younger than `lease`, does
        nothing (`report.skipped`); a run that loses its claim, or meets a reshard, raises
        `CommitConflict`: run it again. After `UnknownOutcome` (Lance cleaned up the versions that
        show whether the commit succeeded) run it again with `lease=0`: nothing is folded twice.
        """
        return compact(
            self.core,
            engine=runner_of(engine),
            fold_wal=fold_wal,
            cluster=cluster,
            indexes=indexes,
            rewrite=rewrite,
            lease=lease,
            progress=progress,
        )

    def gc(
        self,
        min_age: Duration = MIN_AGE,
        fence_retention: Duration = FENCE_RETENTION,
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
        `fence_ttl` of the table and of those dropped at its place. `kinds` chooses what is
        collected. `veto(kind, path)` keeps single objects. With `dry_run` nothing is written. Tasks
        that fail are in `report.errors`, the others go on. `CorruptEntry` when another program
        rolled back or overwrote the base: the repair needs the later versions. One listing of the
        table, some ten requests a shard, and one per thousand objects deleted.
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
        """Seal another program's shard and fold its rows as newer or older than the table's own.

        Fences its writers for good. `InvalidInput` for a shard of the routing, or an unknown one;
        `CommitConflict` while a restore is unfinished.
        """
        return adopt_shard(self.core, shard, order)

    def move_wal(
        self,
        uri: str | None,
        *,
        accept_loss: bool = False,
        progress: Progress | None = None,
    ) -> WalMoveReport:
        """Keep the log of the whole table at `uri` from now on; None: beside the data.

        Fences every writer of every shard that is moved, in any process; reopened, they write to
        the new place. Readers and change feeds follow by themselves. After a failure, run it again.
        Raises `WalStoreMismatch` when the store holds another table's log (nothing is written), or
        when a store that the log is in now is missing and may hold rows (`MissingEntry` when that
        is `uri` itself), unless `accept_loss` gives them up; `StoreUnsuitable` for a store without
        put-if-absent; `CommitConflict` when another process moved the log meanwhile. Costs a claim,
        a flush and two records per shard.
        """
        return move_wal(self.core, uri, accept_loss=accept_loss, progress=progress)

    def restore(self, checkpoint: Ref) -> RestoreReport:
        """Make the table what it was at the checkpoint; every writer is fenced.

        Raises `CheckpointNotFound`; `InvalidInput` when the table was resharded since (clone the
        checkpoint instead); `CommitConflict` while a reshard is unfinished; `MissingEntry` when log
        rows of a durable checkpoint are gone. Close your own writers first. Cost: a claim and a
        manifest for each shard, a commit of the base.
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
        not fit, or while another reshard is unfinished; `CommitConflict` while a restore is;
        `CorruptEntry` as `checkpoint` does. A claim, a flush, two manifests per shard.
        """
        return reshard(self.core, sharding, compact=compact, engine=runner_of(engine))
