"""Blocks in memory equal the file's rows, are bounded, and hold only rows that are read again."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.env import SYSTEM
from weir.lake.base.blocks import RowBlocks

KIB = 1024


class File:
    """Rows by position, and the positions that were read."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.asked: list[list[int]] = []

    def read(self, positions: list[int]) -> pa.Table:
        self.asked.append(positions)
        return self.rows.take(pa.array(positions, pa.int64()))


def wide(count: int, width: int) -> File:
    return File(pa.table({"n": list(range(count)), "s": [f"{n:0{width}d}" for n in range(count)]}))


def take(blocks: RowBlocks, file: File, *positions: int, name: str = "file") -> list[int]:
    found = blocks.take(name, file.rows.num_rows, np.array(positions, np.int64), file.read)
    numbers: list[int] = found.column("n").to_pylist()
    return numbers


def test_a_block_is_read_when_a_lookup_comes_back_to_it_and_then_never_again() -> None:
    blocks, file = RowBlocks(SYSTEM), wide(100, KIB)
    assert take(blocks, file, 7) == [7]  # learns how large rows are
    assert take(blocks, file, 8) == [8]
    assert file.asked == [[7], [8]]
    assert take(blocks, file, 9) == [9]
    assert file.asked[2:] == [list(range(len(file.asked[2])))]
    assert 32 <= len(file.asked[2]) <= 64
    before = len(file.asked)
    assert take(blocks, file, 7, 8, 9) == [7, 8, 9]
    assert len(file.asked) == before


def test_rows_of_blocks_touched_for_the_first_time_are_read_with_one_request() -> None:
    blocks, file = RowBlocks(SYSTEM), wide(1000, KIB)
    take(blocks, file, 0)
    far = [900, 100, 700, 300, 500]
    assert take(blocks, file, *far) == far
    assert file.asked[1:] == [far]
    assert take(blocks, file, 901, 201, 101) == [901, 201, 101]
    assert len(file.asked) == 5, "two blocks, and one request for what is not in one"


def test_lookups_of_many_rows_read_those_and_hold_nothing() -> None:
    blocks, file = RowBlocks(SYSTEM), wide(1000, 10)
    for _ in range(4):
        assert take(blocks, file, *range(0, 900, 100)) == list(range(0, 900, 100))
    assert blocks.bytes == 0


def test_what_is_held_is_bounded() -> None:
    blocks, file = RowBlocks(SYSTEM, limit_bytes=256 * KIB), wide(4000, KIB)
    for _ in range(3):
        for position in range(0, 4000, 20):
            assert take(blocks, file, position) == [position]
            assert blocks.bytes <= 256 * KIB
    assert blocks.bytes > 0


def test_a_file_whose_later_rows_are_larger_gets_smaller_blocks() -> None:
    texts = ["x"] * 10 + ["x" * 100 * KIB] * 90
    blocks, file = RowBlocks(SYSTEM), File(pa.table({"n": list(range(100)), "s": texts}))
    for _ in range(3):
        take(blocks, file, 0)
    for _ in range(6):
        assert take(blocks, file, 50, 95) == [50, 95]
    assert len(file.asked[-1]) == 1, "each of the large rows is a block of its own"


def test_another_file_and_other_columns_are_told_apart() -> None:
    blocks, one, two = RowBlocks(SYSTEM), wide(50, 10), wide(50, 10)
    two.rows = two.rows.set_column(0, "n", pa.array(range(100, 150)))
    for _ in range(4):
        assert take(blocks, one, 3, name="one") == [3]
        assert take(blocks, two, 3, name="two") == [103]


@given(
    lookups=st.lists(st.sets(st.integers(0, 299), min_size=1, max_size=12), max_size=40),
    width=st.sampled_from([1, 500, 40_000]),
)
def test_every_lookup_gives_the_rows_asked_for(lookups: list[set[int]], width: int) -> None:
    blocks, file = RowBlocks(SYSTEM, limit_bytes=300 * KIB), wide(300, width)
    for asked in lookups:
        assert take(blocks, file, *sorted(asked)) == sorted(asked)
        assert blocks.bytes <= 300 * KIB
