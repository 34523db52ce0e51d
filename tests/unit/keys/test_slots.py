"""Sets of numbers compared with Python's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.keys.slots import SlotTable

FAR = st.integers(-(2**63), 2**63 - 1)


NEAR = st.builds(lambda at, by: max(-(2**63), min(2**63 - 1, at + by)), FAR, st.integers(-9, 9))


@given(
    st.lists(st.lists(st.integers(-300, 300), max_size=20) | st.lists(FAR | NEAR, max_size=3)),
    st.lists(st.integers(-400, 400) | FAR),
)
def test_a_set_of_numbers_equals_a_set(parts: list[list[int]], asked: list[int]) -> None:
    """Numbers close together, far apart, or spreading out as more are added."""
    numbers, model = SlotTable(), set[int]()
    asked += [n + by for part in parts for n in part for by in (-1, 0, 1) if abs(n + by) < 2**63]
    asked += [-(2**63), 2**63 - 1]
    for part in parts:
        numbers.add(np.array(part, np.int64))
        model.update(part)
        found = numbers.find(np.array(asked, np.int64)).tolist()
        assert found == [i for i, n in enumerate(asked) if n in model]


def test_a_set_of_numbers_makes_no_room_for_what_it_is_told_to_expect() -> None:
    numbers = SlotTable(1 << 40)  # as given by a level that does not know its row count
    numbers.add(np.array([5, 1 << 60], np.int64))
    assert numbers.find(np.array([4, 5, 1 << 60], np.int64)).tolist() == [1, 2]
