"""A table handle over the shard of `one_shard`, with the model of Lance."""

from tests.support.one_shard import KEYED, lake_on
from weir.config import WriterConfig
from weir.format.schema import TableSchema
from weir.format.sharding import Unsharded
from weir.lake.api import Lake
from weir.log.site import ShardSite
from weir.records.table import Route, TableRecord
from weir.routing.core import Core
from weir.upkeep.gc.collect import collect
from weir.upkeep.gc.report import GcReport


def core_on(
    site: ShardSite,
    schema: TableSchema,
    config: WriterConfig | None = None,
    lake: Lake | None = None,
) -> Core:
    """The handle of an unsharded table whose only shard is at `site`."""
    record = TableRecord(
        table_id=site.shard,
        primary_key=schema.primary_key,
        sharding=Unsharded(),
        routing=(Route(site.shard, None, 0),),
        routing_version=1,
        spec=0,
        wal_uri=None,
        settings=(config or WriterConfig()).to_record(),
        probe={},
        created=0.0,
    )
    return Core(
        uri=site.store.uri,
        storage_options={},
        store=site.store,
        wal=site.wal,
        lake=lake_on(site, schema) if lake is None else lake,
        env=site.env,
        record=record,
    )


def collect_all(site: ShardSite, schema: TableSchema = KEYED, lake: Lake | None = None) -> GcReport:
    """Collect everything that may go, the first entries of epochs included."""
    core = core_on(site, schema, WriterConfig(fence_ttl=0), lake)
    return collect(core, min_age=0, fence_retention=0, keep_first_entries=False)
