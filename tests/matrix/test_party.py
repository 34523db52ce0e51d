"""weir and one version of another program on one table; `make interop` runs this for each version.

Each test is a column of the table in docs/compatibility.md. A version must refuse what it cannot do
and lose nothing; such a test passes, and reports "refused". In `make test` the parties are the
pylance and the LanceDB of this environment.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from tests.matrix.party_program import SCHEMA
from tests.support.party import Party, Refused, chosen
from weir.errors import FencedError

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=chosen(), ids=lambda found: found[0])
def parties(request) -> Iterator[list[Party]]:
    """The running party, started once because its import takes seconds."""
    started = [Party(*request.param)]
    yield started
    started[-1].kill()


@pytest.fixture
def party(request, parties: list[Party]) -> Party:
    if not parties[-1].is_alive:
        parties.append(parties[-1].again())
    parties[-1].ask("forget")
    request.node.user_properties.append(("version", parties[-1].version))
    return parties[-1]


@pytest.fixture
def told(request):
    """Report the outcome: one of the words in the table."""
    return lambda how: request.node.user_properties.append(("outcome", how))


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    return weir.create(str(tmp_path / "t.lance"), SCHEMA, primary_key="id")


def shard_of(table: weir.Table) -> str:
    return str(table.shards()[0].id)


def put(table: weir.Table, **values: str) -> None:
    """Put rows such as k1="a"; they are flushed on return."""
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": int(k[1:]), "v": v} for k, v in values.items()])


def ours(table: weir.Table, **how) -> list[list]:
    found = weir.open(table.uri).scan(**how).to_table().to_pylist()
    return sorted([row["id"], row["v"]] for row in found)


def snapshots(table: weir.Table) -> list:
    """The snapshots that pylance's scanner must be given; LanceDB finds them itself."""
    again = weir.open(table.uri)
    folded = again.core.base().compacted
    return [
        (
            str(shard.id),
            int((manifest := shard.manifest()).current_generation),
            [
                (int(t.generation), t.path)
                for t in manifest.sstables
                if t.generation > folded.get(shard.id, 0)
            ],
        )
        for shard in again.shards()
    ]


def test_reads_what_weir_wrote(table: weir.Table, party: Party, told) -> None:
    """Read SSTables with a delete and an older row, then the base, then after collection."""
    put(table, k1="a", k2="b", k3="c")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "newer"}])
        writer.delete([2])
    want = [[1, "newer"], [3, "c"]]
    assert party.ask("scan", uri=table.uri, snapshots=snapshots(table)) == want
    table.compact()
    assert party.ask("base", uri=table.uri) == want
    assert party.ask("scan", uri=table.uri, snapshots=snapshots(table)) == want
    assert table.gc(min_age=0).ok
    assert party.ask("scan", uri=table.uri, snapshots=snapshots(table)) == want
    told("works")


def test_is_read_at_once(table: weir.Table, party: Party, told) -> None:
    """weir reads the party's unflushed rows, its SSTables, and the rows folded from them."""
    put(table, k1="weir", k2="weir")
    party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[1, "theirs"], [3, "theirs"]])
    want = [[1, "theirs"], [2, "weir"], [3, "theirs"]]
    assert ours(table) == want
    assert table.get([1])["v"].to_pylist() == ["theirs"]
    if party.kind == "pylance":
        party.ask("delete", uri=table.uri, shard=shard_of(table), ids=[2])
        want = [row for row in want if row[0] != 2]
    party.ask("close")
    assert ours(table) == want
    table.compact(fold_wal=True)
    assert ours(table, freshness="base") == ours(table) == want
    told("works")


def test_killed_and_taken_over(table: weir.Table, party: Party, told) -> None:
    put(table, k1="weir")
    for n in range(5):
        party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[n, f"theirs {n}"]])
    party.kill()
    want = [[n, f"theirs {n}"] for n in range(5)]
    assert ours(table) == want
    put(table, k9="weir")
    assert ours(table) == [*want, [9, "weir"]]
    told("works")


def test_each_fences_the_other(table: weir.Table, party: Party, told) -> None:
    writer = table.writer()
    writer.put([{"id": 1, "v": "weir"}])
    writer.flush()
    party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[1, "theirs"]])
    with pytest.raises(FencedError):
        writer.put([{"id": 1, "v": "late"}])
    put(table, k2="weir")
    with pytest.raises(Refused, match=r"(?i)fenced"):
        party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[2, "late"]])
    assert ours(table) == [[1, "theirs"], [2, "weir"]]
    told("works")


def test_takes_over_weirs_live_log(table: weir.Table, party: Party, told) -> None:
    """Lance 13 and older cannot replay tagged entries: they are refused, and nothing is lost."""
    writer = table.writer()
    writer.put([{"id": 1, "v": "unflushed"}])
    try:
        party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[2, "theirs"]])
        want, how = [[1, "unflushed"], [2, "theirs"]], "works"
    except Refused:
        want, how = [[1, "unflushed"]], "refused"
    assert ours(table) == want
    with pytest.raises(FencedError):
        writer.put([{"id": 3, "v": "late"}])
    put(table, k4="weir")
    assert ours(table) == [*want, [4, "weir"]]
    party.ask("forget")
    party.ask("put", uri=table.uri, shard=shard_of(table), rows=[[5, "theirs"]])
    assert ours(table) == [*want, [4, "weir"], [5, "theirs"]]
    told(how)


def test_its_tables_are_adopted(tmp_path: Path, party: Party, told) -> None:
    uri = str(tmp_path / "theirs.lance")
    party.ask("make", uri=uri)
    table = weir.enable(uri)
    put(table, k1="weir", k2="weir")
    party.ask("put", uri=uri, shard=shard_of(table), rows=[[2, "theirs"]])
    assert ours(table) == [[1, "weir"], [2, "theirs"]]
    told("works")


def test_is_kept_out_where_it_must(tmp_path: Path, party: Party, told) -> None:
    """With a log in a store of its own, the party is refused before it claims."""
    uri = str(tmp_path / "t.lance")
    table = weir.create(uri, SCHEMA, primary_key="id", wal_uri=str(tmp_path / "wal"))
    put(table, k1="weir")
    before = table.shards()[0].manifest().writer_epoch
    with pytest.raises(Refused):
        party.ask("put", uri=uri, shard=shard_of(table), rows=[[1, "late"]])
    assert weir.open(uri).shards()[0].manifest().writer_epoch == before
    told("works")


def test_its_upkeep_loses_nothing(table: weir.Table, party: Party, told) -> None:
    put(table, k1="a", k2="b")
    table.compact()
    put(table, k2="newer", k3="c")
    writer = table.writer()
    writer.put([{"id": 4, "v": "unflushed"}])
    party.ask("upkeep", uri=table.uri)
    want = [[1, "a"], [2, "newer"], [3, "c"], [4, "unflushed"]]
    assert ours(table) == want
    writer.close()
    weir.open(table.uri).compact()
    assert ours(table, freshness="base") == want
    told("works")
