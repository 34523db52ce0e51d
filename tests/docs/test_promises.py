"""Sentences of the guides that promise something and belong to no rule of the protocol."""

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir.errors import InvalidInput
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WEEK = 7 * 86_400


def filled(place: Path, shards: int = 1) -> weir.Table:
    sharding = weir.Bucket("id", shards) if shards > 1 else None
    table = weir.create(str(place), SCHEMA, primary_key="id", sharding=sharding)
    with table.writer() as writer:
        writer.put([{"id": i} for i in range(20)])
    table.compact()
    return table


def test_a_tag_keeps_the_version_of_a_checkpoint_from_lances_own_clean_up(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    checkpoint = table.checkpoint()
    dataset = lance.dataset(table.uri)
    assert dataset.tags.list()[f"weir-{checkpoint.id}"]["version"] == checkpoint.base_version
    with table.writer() as writer:
        writer.delete(list(range(10)))
    table.compact()
    lance.dataset(table.uri).cleanup_old_versions(
        older_than=dt.timedelta(0), error_if_tagged_old_versions=False
    )
    assert table.count(checkpoint=checkpoint) == 20
    table.delete_checkpoint(checkpoint)
    assert f"weir-{checkpoint.id}" not in lance.dataset(table.uri).tags.list()
    table.delete_checkpoint(checkpoint)  # gone already is fine


def test_a_lifetime_is_only_ever_made_longer(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    made = table.checkpoint(name="nightly", ttl="7d")
    assert table.refresh_checkpoint("nightly", ttl="1h").expires == made.expires
    longer = table.refresh_checkpoint("nightly", ttl="8d").expires
    assert longer is not None
    assert made.expires is not None
    assert longer > made.expires


def test_what_undoes_a_restore_or_a_reshard_is_kept_for_seven_days(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    undo = table.restore(table.checkpoint()).undo
    table.reshard(weir.Bucket("id", 2))
    (before,) = (one for one in table.checkpoints() if one.name == "before-reshard")
    for kept in (undo, before):
        assert kept.expires is not None
        assert kept.expires - kept.created == pytest.approx(WEEK, abs=60)


def test_a_finished_clone_is_not_discarded(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    copy = table.clone(str(tmp_path / "copy"))
    with pytest.raises(InvalidInput):
        table.discard_clone(copy.uri)
    assert weir.open(copy.uri).count() == 20


def test_while_the_store_hangs_on_the_entry_of_one_shard_puts_to_others_return(
    tmp_path: Path,
) -> None:
    made = filled(tmp_path / "t", shards=2)
    faulty = FaultyStores()
    table = weir.open(made.uri, env=faulty.env)
    slow, other = ([i for i in range(20) if table.shard_of((i,)).value == v] for v in (0, 1))
    with table.writer() as writer:
        writer.put([{"id": slow[0]}, {"id": other[0]}])
        gate = faulty.at(table.uri).on("put_if_absent", f"*{table.shard(0).id}/wal/*").pause()
        hung = writer.put([{"id": slow[0]}], wait=False)
        gate.wait_reached()
        for key in other:
            writer.put([{"id": key}])
        assert not hung.done
        gate.release()
        hung.wait()
