"""A clone's pin has the name of the checkpoint it was made from. Deleting that checkpoint by name
released the pin too, and the next collection deleted the base of the clone (C-1)."""

import pytest

import weir
from tests.support.moments import SCHEMA


@pytest.fixture
def parent(tmp_path):
    table = weir.create(str(tmp_path / "parent"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1}, {"id": 2}])
    table.compact()
    return table


def collect(table):
    """Replace the base, and collect everything that nothing holds."""
    with table.writer() as writer:
        writer.put([{"id": 1}, {"id": 2}])
    table.compact()
    return table.gc(min_age=0, fence_retention="2m")


def test_c1_deleting_a_checkpoint_by_name_leaves_its_clones_alone(parent, tmp_path):
    parent.checkpoint(name="nightly", scope="durable")
    copy = parent.clone(str(tmp_path / "copy"), checkpoint="nightly")
    parent.delete_checkpoint("nightly")
    assert collect(parent).ok
    assert weir.open(copy.uri).scan().to_table().num_rows == 2  # reads the files
    with pytest.raises(weir.CheckpointNotFound):
        parent.scan(checkpoint="nightly").count()


def test_k5_refreshing_by_name_refreshes_ones_own(parent, tmp_path):
    mine = parent.checkpoint(name="nightly", scope="durable", ttl="1h")
    parent.clone(str(tmp_path / "copy"), checkpoint="nightly")
    longer = parent.refresh_checkpoint("nightly", ttl="7d")
    assert longer.id == mine.id
    assert longer.expires > mine.expires


def test_c4_the_same_clone_by_name_again_is_the_same_clone(parent, tmp_path):
    parent.checkpoint(name="nightly", scope="durable")
    for _ in range(2):
        copy = parent.clone(str(tmp_path / "copy"), checkpoint="nightly")
    assert copy.scan().count() == 2
