"""C-10: files too large for one request or for memory are copied in parts."""

from pathlib import Path
from typing import Any

import pytest

import weir
from tests.rules.test_fold_beside_commits import make, put, rows_of
from weir.env import SYSTEM
from weir.errors import CorruptEntry
from weir.store.memory import MemoryStore
from weir.store.open import open_store
from weir.upkeep import copying

LIMIT = 64 << 10


class Limited:
    """A store whose requests carry at most `LIMIT` bytes, as S3's carry 5 GiB."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.parts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, path: str) -> Any:
        assert self.inner.head(path).size <= LIMIT, "a whole file in memory"
        return self.inner.get(path)

    def put_if_absent(self, path: str, data: bytes) -> Any:
        assert len(data) <= LIMIT, "more than one request takes"
        return self.inner.put_if_absent(path, data)

    def put_parts(self, path: str, parts: Any) -> None:
        def bounded() -> Any:
            for part in parts():
                assert len(part) <= LIMIT
                self.parts += 1
                yield part

        self.inner.put_parts(path, bounded)


def test_c10_a_large_file_is_copied_in_parts_and_compared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "LARGE_BYTES", LIMIT)
    monkeypatch.setattr(copying, "PART_BYTES", LIMIT)
    table = make(tmp_path, keyed=True)
    put(table, {key: f"{key * 7919 % 10007:040x}" for key in range(20_000)})
    table.compact()
    model = rows_of(table)
    version = table.core.lake.open_base().version
    largest = max(meta.size for meta in table.core.store.list("data"))
    assert largest > 3 * LIMIT, "the test needs a file of several parts"
    source, target = Limited(table.core.store), Limited(open_store(str(tmp_path / "copy")))
    copied = copying.copy_base(source, target, version, SYSTEM)
    assert copied > largest
    assert target.parts > 3
    # Again, as after a crash: existing files are compared, and nothing is written.
    target.parts = 0
    assert copying.copy_base(source, target, version, SYSTEM) == copied
    assert target.parts == 0
    # End to end.
    deep = table.clone(str(tmp_path / "deep"), table.checkpoint(scope="all"), deep=True)
    assert rows_of(deep) == model
    assert isinstance(deep, weir.Table)


def test_c4_other_bytes_in_the_place_of_a_large_file_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copying, "LARGE_BYTES", 8)
    monkeypatch.setattr(copying, "PART_BYTES", 8)
    for there in (b"x" * 19, b"y" * 20, b"x" * 19 + b"y"):
        source, target = MemoryStore(), MemoryStore()
        source.put("data/f", b"x" * 20)
        target.put("data/f", there)
        with pytest.raises(CorruptEntry, match="exists with other content"):
            copying._copy(source, target, list(source.list("data")), SYSTEM)
        assert target.get("data/f").data == there
