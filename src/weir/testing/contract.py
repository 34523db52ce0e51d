"""The behaviour any `Store` must show, as checks that a test suite runs over each kind of store.

    @pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
    def test_contract(store, check):
        check(store)

Each check needs an empty root, raises `AssertionError` when the store breaks the contract, and
leaves its objects behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.env import SYSTEM
from weir.errors import InvalidInput
from weir.store.api import ObjectExists, ObjectMissing, Store

_RACERS = 4


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def put_if_absent_creates_once(store: Store) -> None:
    """The first create wins; the second is refused and changes nothing."""
    store.put_if_absent("a/b", b"first")
    _raises(ObjectExists, lambda: store.put_if_absent("a/b", b"second"))
    assert store.get("a/b").data == b"first"


def put_if_absent_has_one_winner(store: Store) -> None:
    """Exactly one of several concurrent creates succeeds, and its bytes are stored whole."""

    def create(body: bytes) -> bytes | None:
        try:
            store.put_if_absent("race", body)
        except ObjectExists:
            return None
        return body

    bodies = [bytes([i]) * 10_000 for i in range(_RACERS)]
    won = [body for body in SYSTEM.threads.map(create, bodies, workers=_RACERS) if body]
    assert len(won) == 1, f"{len(won)} of {_RACERS} concurrent creates succeeded, not 1"
    assert store.get("race").data == won[0]


def put_parts_makes_one_object(store: Store) -> None:
    """Parts are joined in order; a source that fails leaves no object, and its error is raised."""
    parts = [bytes([i]) * (6 << 20) for i in range(3)]
    store.put_parts("in/parts", lambda: iter(parts))
    assert store.get("in/parts").data == b"".join(parts)
    store.put_parts("empty", lambda: iter(()))
    assert store.get("empty").data == b""

    def broken() -> Iterator[bytes]:
        yield parts[0]
        raise ObjectMissing("the source")

    _raises(ObjectMissing, lambda: store.put_parts("half", broken))
    assert store.head("half") is None
    assert [meta.path for meta in store.list("in")] == ["in/parts"]


def put_if_absent_after_delete(store: Store) -> None:
    """A deleted object can be created again."""
    store.put_if_absent("a", b"1")
    store.delete(["a"])
    store.put_if_absent("a", b"2")
    assert store.get("a").data == b"2"


def put_replaces(store: Store) -> None:
    """A plain put creates and replaces."""
    store.put("hint", b"1")
    store.put("hint", b"22")
    assert store.get("hint").data == b"22"


def buffers_are_taken(store: Store) -> None:
    """Bytes may be given as any buffer, and later changes to it have no effect."""
    buffer = bytearray(b"abc")
    store.put_if_absent("array", buffer)
    store.put("view", memoryview(buffer)[1:])
    buffer[0] = 0
    assert store.get("array").data == b"abc"
    assert store.get("view").data == b"bc"


def get_tells_size_time_and_path(store: Store) -> None:
    """Metadata of a get, a head and a list agree."""
    before = store.now()
    store.put_if_absent("x/y", b"12345")
    after = store.now()
    meta = store.get("x/y").meta
    assert (meta.path, meta.size) == ("x/y", 5)
    # Timestamps may be whole seconds, and coarser than the clock that `now` reads.
    assert int(before) - 1 <= meta.last_modified <= after + 1
    assert store.head("x/y") == meta
    assert list(store.list("x")) == [meta]


def empty_objects(store: Store) -> None:
    """An object may be empty."""
    store.put_if_absent("empty", b"")
    assert store.get("empty").data == b""
    assert store.get_range("empty", 0, 10) == b""
    _raises(ObjectExists, lambda: store.put_if_absent("empty", b""))


def missing_objects(store: Store) -> None:
    """For a missing object reads raise, a head gives None and a listing is empty."""
    _raises(ObjectMissing, lambda: store.get("no/such"))
    _raises(ObjectMissing, lambda: store.get_range("no/such", 0, 1))
    assert store.head("no/such") is None
    assert store.get_many(["no/such"]) == [None]
    assert store.head_many(["no/such"]) == [None]
    assert store.list_many(["no/such"]) == [[]]
    assert list(store.list("no")) == []
    assert store.list_folder("no") == ([], [])


def folders_are_no_objects(store: Store) -> None:
    """A name that is only a prefix of other names cannot be read."""
    store.put_if_absent("d/e/f", b"1")
    assert store.head("d/e") is None
    assert store.get_many(["d/e"]) == [None]
    _raises(ObjectMissing, lambda: store.get("d/e"))


def ranges(store: Store) -> None:
    """A range is cut at the end of the object."""
    store.put_if_absent("r", b"0123456789")
    assert store.get_range("r", 2, 3) == b"234"
    assert store.get_range("r", 8, 10) == b"89"
    assert store.get_range("r", 10, 5) == b""
    assert store.get_range("r", 50, 5) == b""
    assert store.get_range("r", 3, 0) == b""


def many_in_order(store: Store) -> None:
    """Concurrent reads return in the order of the paths given."""
    for i in range(30):
        store.put_if_absent(f"m/{i}", str(i).encode())
    wanted = [f"m/{i}" for i in reversed(range(32))]
    found = store.get_many(wanted)
    assert found == [None, None, *[str(i).encode() for i in reversed(range(30))]]
    begun = store.get_many(wanted, first=1)
    assert begun == [body and body[:1] for body in found]
    assert store.get_many(wanted, first=9) == found
    sizes = [meta and meta.size for meta in store.head_many(wanted)]
    assert sizes == [None, None, *[len(str(i)) for i in reversed(range(30))]]


def lists_by_folder(store: Store) -> None:
    """A prefix is a folder, not the beginning of a name."""
    for path in ("p/1", "p/q/2", "p/q/r/3", "pp/4", "5"):
        store.put_if_absent(path, b"x")
    assert {meta.path for meta in store.list("p")} == {"p/1", "p/q/2", "p/q/r/3"}
    assert {meta.path for meta in store.list("p/q/")} == {"p/q/2", "p/q/r/3"}
    assert len(list(store.list(""))) == 5
    folders, objects = store.list_folder("p")
    assert (folders, [meta.path for meta in objects]) == (["q"], ["p/1"])
    folders, objects = store.list_folder("")
    assert (sorted(folders), [meta.path for meta in objects]) == (["p", "pp"], ["5"])


def deletes_many(store: Store) -> None:
    """Missing objects count as deleted (G-12)."""
    for i in range(5):
        store.put_if_absent(f"del/x/{i}", b"")
    store.delete([*(f"del/x/{i}" for i in range(5)), "del/never", "nowhere/at/all"])
    store.delete([])
    # Not list_folder: SeaweedFS lists a folder for a while after its last object was deleted.
    assert list(store.list("")) == []


def odd_names(store: Store) -> None:
    """Names with dots, spaces, equals and percent signs come back as they were given."""
    names = {"n/a b=c.d", "n/%41", "n/ü-ß", "n/.hidden"}
    for name in names:
        store.put_if_absent(name, name.encode())
    assert {meta.path for meta in store.list("n")} == names
    assert all(store.get(name).data == name.encode() for name in names)


def paths_stay_inside(store: Store) -> None:
    """No path leaves the root or looks like a file that is being written."""
    for path in ("../out", "a/../../out", "/abs", "a//b", "a/", "", ".", "a/#1", "a\x00b", "a\\b"):
        _raises(InvalidInput, lambda path=path: store.put_if_absent(path, b"x"))  # type: ignore[misc]
        _raises(InvalidInput, lambda path=path: store.get(path))  # type: ignore[misc]
    _raises(InvalidInput, lambda: list(store.list("..")))
    assert list(store.list("")) == []


def large_objects(store: Store) -> None:
    """Eight megabytes in a single conditional put."""
    body = bytes(range(256)) * 32768
    store.put_if_absent("large", body)
    assert store.get("large").data == body
    assert store.get_range("large", 256 * 1000 + 5, 3) == b"\x05\x06\x07"


CHECKS: tuple[Callable[[Store], None], ...] = (
    put_if_absent_creates_once,
    put_if_absent_has_one_winner,
    put_parts_makes_one_object,
    put_if_absent_after_delete,
    put_replaces,
    buffers_are_taken,
    get_tells_size_time_and_path,
    empty_objects,
    missing_objects,
    folders_are_no_objects,
    ranges,
    many_in_order,
    lists_by_folder,
    deletes_many,
    odd_names,
    paths_stay_inside,
    large_objects,
)
