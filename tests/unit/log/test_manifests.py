"""The outcome of manifest commits whose answer was lost."""

from dataclasses import replace

import pytest

from tests.support.local_shard import LocalShard, row
from weir.errors import UnknownOutcome
from weir.log.manifests import Manifests
from weir.log.rules import Evidence


@pytest.fixture
def shard(tmp_path):
    return LocalShard(tmp_path / "t")


def test_w5_an_sstable_compacted_away_since_was_published_by_a_version_that_was_tried(shard):
    """If it were published again, its rows would come back over newer ones."""
    with shard.writer() as writer:
        writer.put([row(1)])
    manifests = Manifests(shard.site)
    published = manifests.require()
    (table,) = published.sstables
    later = replace(published, version=published.version + 1, sstables=())
    current = manifests.commit(later, published, Evidence())
    assert manifests.published(table, published, [])
    assert not manifests.published(table, current, [])
    going = replace(current, current_generation=table.generation)
    assert not manifests.published(table, going, [current.version])
    assert manifests.published(table, going, [published.version, current.version])
    # A manifest in a collected place proves nothing: nobody ever read it (G-6).
    manifests.floors.raise_to("manifest", published.version)
    assert not manifests.published(table, going, [published.version])
    # But its generation is over, and only the owner ends a generation.
    assert manifests.published(table, current, [published.version])


def test_f11_an_entry_in_our_place_that_cannot_be_read_leaves_the_outcome_unknown(shard):
    """The entry may be ours, written by a repeated request, or a successor's: it is unknown."""
    writer = shard.writer()
    position = writer.wal_stats().next_position
    shard.faults.on("put_if_absent", "*/wal/*").duplicate(answer="second")
    shard.faults.on("get", "*/wal/*").fail_before(times=None)
    with pytest.raises(UnknownOutcome) as unknown:
        writer.put([row(1)])
    assert len(unknown.value.perhaps_written) == 1
    shard.faults.heal()
    again = shard.writer()
    assert again.stats().replayed_rows == 1
    assert [entry[0] for entry in shard.log() if entry[3]] == [position]
    again.close()
