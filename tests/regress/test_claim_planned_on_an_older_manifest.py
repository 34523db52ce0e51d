"""Found by the simulator (seed 4000498): an opener read the manifest, met an entry of a newer
epoch, and claimed on a fresh read of the manifest, but with the position it had probed before. R
was past that position by then, so it probed again after its claim, above the fence of a newer
owner: in the log an older epoch followed a newer one (F-7)."""

import dataclasses

import pytest

from tests.support.one_shard import open_writer, site_on
from weir.env import SYSTEM
from weir.errors import FencedError
from weir.format import paths
from weir.format.wal_entry import decode_entry
from weir.log import fence
from weir.log.fence import claim_shard
from weir.store.memory import MemoryStore


def test_f7_a_claim_is_of_one_look_at_manifest_and_tip(monkeypatch):
    store = MemoryStore()
    site = site_on(store)
    open_writer(site).close()
    probe, others = fence._next_position, []

    def overtaken(*args):
        monkeypatch.setattr(fence, "_next_position", probe)
        others.append(open_writer(site))  # a newer epoch, after the manifest was read
        position = probe(*args)
        others[0].put([{"k": 1, "v": 1}])
        others[0].close()  # R passes the probed position
        return position

    def newer(step):
        if step == "claim.claimed":
            others.append(open_writer(site))

    slow = dataclasses.replace(site, env=dataclasses.replace(SYSTEM, failpoint=newer))
    monkeypatch.setattr(fence, "_next_position", overtaken)
    with pytest.raises(FencedError):
        claim_shard(slow)
    others[-1].close()
    assert epochs_in_order(store) == sorted(epochs_in_order(store))


def epochs_in_order(store):
    found = {}
    for meta in store.list("_mem_wal"):
        position = paths.parse_wal_name(meta.path.rpartition("/")[2])
        if position is not None and "/wal/" in meta.path:
            data = store.get(meta.path).data
            found[position] = decode_entry(data, position=position, path=meta.path).epoch
    return [found[position] for position in sorted(found)]
