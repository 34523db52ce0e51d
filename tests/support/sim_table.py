"""A table handle over the shard of `one_shard`, with the model of Lance."""

from tests.support.one_shard import lake_on
from weir.config import WriterConfig
from weir.format.schema import TableSchema
from weir.format.sharding import Unsharded
from weir.log.site import ShardSite
from weir.records.table import Route, TableRecord
from weir.routing.core import Core


def core_on(site: ShardSite, schema: TableSchema) -> Core:
    """The handle of an unsharded table whose only shard is at `site`."""
    record = TableRecord(
        table_id=site.shard,
        primary_key=schema.primary_key,
        sharding=Unsharded(),
        routing=(Route(site.shard, None, 0),),
        routing_version=1,
        spec=0,
        wal_uri=None,
        settings=WriterConfig().to_record(),
        probe={},
        created=0.0,
    )
    return Core(
        uri=site.store.uri,
        storage_options={},
        store=site.store,
        wal=site.wal,
        lake=lake_on(site, schema),
        env=site.env,
        record=record,
    )
