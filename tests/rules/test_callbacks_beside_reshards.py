"""C-11: the callback of a shard writer's put may put through the table's writer during a reshard.

The callback waits there for the new shards. Nothing that the reshard, or the other writer, does on
the way to them may wait for the callback.
"""

import threading
from pathlib import Path

import pytest

import weir
from tests.support.moments import again, make, put, rows
from tests.support.threads import until
from weir.env import Env


def test_c11_a_callback_waits_for_the_new_shards_and_nobody_for_the_callback(
    tmp_path: Path,
) -> None:
    begun, told = threading.Event(), list[object]()

    def callback(_: weir.Ack) -> None:
        begun.set()
        told.append(writer.put([{"id": theirs[1], "v": "from the callback"}]))

    def at(name: str) -> None:
        if name != "reshard.checkpointed":
            return
        # All old shards are sealed, and there is no new routing yet.
        single.put([{"id": mine[1], "v": "refused"}], wait=False).add_done_callback(callback)
        assert begun.wait(20)

    table = make(tmp_path / "t", 2)
    first = table.shards()[0]
    mine = [n for n in range(50) if table.shard_of({"id": n}).id == first.id]
    theirs = [n for n in range(50) if n not in mine]
    writer, single = table.writer(), first.writer()
    put(writer, theirs[:1], "before")
    put(single, mine[:1], "before")
    again(table, env=Env(failpoint=at)).reshard(weir.Bucket("id", 3))
    until(lambda: told)
    writer.close()
    with pytest.raises((weir.FencedError, weir.SealedShard)) as ended:
        single.close()
    assert sum(batch.num_rows for batch in ended.value.unacknowledged) == 1
    assert rows(again(table)) == {
        theirs[0]: "before",
        mine[0]: "before",
        theirs[1]: "from the callback",
    }
