"""Sentences of the guides that promise something and belong to no rule of the protocol."""

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.moments import at_time
from weir.errors import InvalidInput, SchemaMismatch
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


def test_after_the_steps_of_the_how_to_the_bytes_of_a_person_are_in_no_object(
    tmp_path: Path,
) -> None:
    place, who = tmp_path / "people", "ada@example.org"
    table = weir.create(str(place), {"id": "int64!", "email": "string"}, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "email": who}, {"id": 2, "email": "bob@example.org"}])
    table.compact()
    assert holding(place, who)
    with table.writer() as writer:
        writer.delete_where("email = $e", params={"e": who})
    table.compact()
    lance.dataset(table.uri).optimize.compact_files(
        materialize_deletions=True, materialize_deletions_threshold=0.0
    )
    week = [table.core.store.now() + 1.1 * WEEK]
    assert at_time(weir.open(table.uri), week).gc(min_age=0).ok
    assert holding(place, who) == []
    assert holding(place, "bob@example.org")


def holding(folder: Path, text: str) -> list[str]:
    """The files below the folder that hold the text."""
    return [str(p) for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


def test_a_new_value_that_its_column_cannot_hold_is_refused_and_integers_wrap_around(
    tmp_path: Path,
) -> None:
    columns = {"id": "int64!", "n": "int64", "price": "float64"}
    table = weir.create(str(tmp_path / "t"), columns, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "n": 2**63 - 1}, {"id": 2, "n": 3, "price": 0.75}])
        with pytest.raises(SchemaMismatch):
            writer.update_where("id = 2", {"n": "price * 2"})
        writer.update_where("id = 2", {"n": "CAST(price * 2 AS BIGINT)"})
        writer.update_where("id = 1", {"n": "n + 1"})
        assert table.get([1, 2])["n"].to_pylist() == [-(2**63), 1]
