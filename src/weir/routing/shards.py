"""`Shard`: one shard as users hold it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from weir.config import WriterConfig
from weir.errors import InvalidInput, NotAWeirTable
from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.format.sharding import Unsharded, Value
from weir.lake.pylance_lake import PylanceLake
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.routing.core import Core
from weir.shard.handover import open_writer
from weir.shard.load import Load
from weir.shard.writer import Belongs, ShardWriter


class Shard:
    """One shard of a table. Cheap; holds nothing open."""

    def __init__(self, core: Core, shard: UUID, value: Value, *, is_routed: bool = True) -> None:
        """Use `Table.shard` or `Table.shards`."""
        self._core = core
        self.id = shard
        self.value = value
        """The bucket, the value of the identity column, or None."""
        self.is_routed = is_routed
        """False for a shard that another program made: it is read, but no row is sent to it."""

    def __repr__(self) -> str:
        return f"Shard({self.id}, value={self.value!r}, table={self._core.uri!r})"

    @property
    def site(self) -> ShardSite:
        """Where the shard is."""
        return self._core.site(self.id)

    @property
    def log(self) -> ShardLog:
        """Its manifest and its log, wherever that is and was."""
        return self._core.log(self.id)

    @property
    def table_schema(self) -> TableSchema:
        """The table's schema with its field ids. One listing."""
        return self._core.schema()

    def manifest(self) -> ShardManifest:
        """The latest manifest. Two requests when nothing changed."""
        site = self._core.beside(self.id)
        manifest = self._core.tails.manifests(site).latest()
        if manifest is None:
            raise NotAWeirTable(f"{site} does not exist; `Table.shards` lists those that do")
        return manifest

    def writer(
        self, config: WriterConfig | None = None, *, schema: TableSchema | None = None
    ) -> ShardWriter:
        """Claim the shard and fence every other writer of it; see `ShardWriter.open`.

        Without `config` the table's `writer_defaults` hold. `schema` is one that
        `schema_for_writing` gave before, for who goes on with the columns it knows.
        """
        core = self._core
        allowed = core.record.writer_defaults.fence_ttl_s
        if config is not None and config.fence_ttl_s > allowed:
            # Collection keeps fences for as long as the table's own value demands (G-7b).
            raise InvalidInput(
                f"fence_ttl={config.fence_ttl_s:g} s is more than the {allowed:g} s this table was "
                "made with; use a smaller one"
            )
        opened = open_writer(
            core.wal_stores,
            self.id,
            core.wanted_wal,
            schema=schema or schema_for_writing(core),
            lake=core.lake,
            config=config or core.record.writer_defaults,
            belongs=self._belongs(),
        )
        core.live[self.id] = opened
        return opened

    def load(self, config: WriterConfig) -> Load:
        """Claim the shard for one batch that is too large for a log entry; see `weir.shard.load`.

        Opens a writer with `config` first, which flushes what is in the log.
        """

        def flush() -> ShardSite:
            with self.writer(replace(config, enable_memtable=True)) as writer:
                return writer.site

        return Load.open(
            flush,
            schema=schema_for_writing(self._core),
            lake=self._core.lake,
            belongs=self._belongs(),
            fence_ttl=config.fence_ttl_s,
        )

    def _belongs(self) -> Belongs | None:
        """Which rows are this shard's; None where all are."""
        if not self.is_routed or isinstance(self._core.record.sharding, Unsharded):
            return None
        router, value = self._core.router, self.value
        return lambda batch: router.mask(batch, value)

    def tailer(self, start: int | None = None, *, fences: bool = False) -> WalTailer:
        """A reader of the shard's log; see `WalTailer`."""
        return WalTailer(self.log, start, fences=fences)


def schema_for_writing(core: Core) -> TableSchema:
    """The latest schema, its columns marked (`weir.format.schema`). One listing."""
    lake = core.lake
    # A model of a lake has columns that never change.
    return lake.schema_for_writing() if isinstance(lake, PylanceLake) else core.schema()
