"""Delete a table such that no put to it is acknowledged afterwards.

    1  refuse while a clone shares its files (C-15)
    2  say in the record that the drop has begun: no new shard is made from here on
    3  seal every shard: its writer is fenced, and nobody can claim it again
    4  release the pins in tables whose files this one shares (C-14)
    5  delete the logs in stores of their own, then the table's folders
    6  say in the record that the drop is done

Keeps
  C-16 nothing is deleted before every shard is sealed; what stops the writers stays (`burial`); an
       interrupted drop is finished by the next one, and two at once by either; one that slept
       meanwhile deletes nothing of the next table
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from weir.errors import InvalidInput, NotAWeirTable
from weir.format import paths
from weir.records.holds import Holds
from weir.records.lineage import KEEP_WITHOUT_PARENT, read_lineage
from weir.records.table import State, TableRecords
from weir.routing.core import CONCURRENCY, Core
from weir.upkeep.burial import BATCH, clear_logs, delete, remains, seal
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.parents import release_parents

logger = logging.getLogger(__name__)


def drop(core: Core) -> None:
    """Delete the table of `core`; see `weir.drop`."""
    owners = sorted({str(pin.owner) for pin in Holds(core.store).clone_pins()})
    if owners:  # guard: C-15 test_drop
        raise InvalidInput(
            f"{core.uri} shares files with its clone {owners[0]}; drop the clone first."
            f" {KEEP_WITHOUT_PARENT}. For a clone that is gone: table.release_clone(uri), or"
            f" weir checkpoint release {core.uri} {owners[0]}"
        )
    _record(core, "dropping")
    try:
        _delete_all(core)
    except NotAWeirTable as gone:
        if TableRecords(core.store, core.record.table_id).is_there():
            raise
        logger.warning("table.drop.finished uri=%s: by another process: %s", core.uri, gone)


def _delete_all(core: Core) -> None:
    """Steps 3 to 6. `NotAWeirTable` when another process has finished the drop: what is here now
    may be the next table's, whose shards, base and records have the same names."""

    def ask() -> None:  # before every request that ends or deletes something
        core.records().load(to_drop=True)

    shards, threads = core.all_shard_ids(), core.env.threads
    sealed = threads.map(lambda shard: seal(core, shard, ask), shards, workers=CONCURRENCY)
    graves = [grave for grave in sealed if grave is not None]
    Jobs(core.store).bury(core.env, ask)  # guard: C-16 test_drop
    core.env.failpoint("drop.sealed")
    lineage = read_lineage(core.store)
    if lineage is not None:
        release_parents(lineage.pins, core.uri, core.storage_options, core.env)
    clear_logs(core, graves)
    core.env.failpoint("drop.logs")
    listed = [meta for folder in paths.TABLE_FOLDERS for meta in core.store.list(folder)]
    gone = sorted({meta.path for meta in listed} - remains(core.store, listed, graves))
    core.env.failpoint("drop.listed")
    for start in range(0, len(gone), BATCH):
        ask()  # guard: C-16 test_drop
        delete(core.store, gone[start : start + BATCH])
    core.env.failpoint("drop.rows")
    _record(core, "dropped")
    logger.info("table.dropped uri=%s objects=%d", core.uri, len(gone))


def _record(core: Core, state: State) -> None:
    core.records().update(lambda record: replace(record, state=state), core.env)
