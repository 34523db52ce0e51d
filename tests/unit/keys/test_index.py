"""An index of keys compared with Python's own sets."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.keys.index import KeyIndex
from weir.keys.keyset import KeySet

NUMBERS = st.lists(st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1))


@given(NUMBERS, NUMBERS)
def test_key_index_and_set_equal_python(here: list[int], asked: list[int]) -> None:
    for dtype, cast in ((pa.int64(), int), (pa.utf8(), str)):
        keys = pa.array([cast(n) for n in here], dtype)
        wanted = pa.array([cast(n) for n in asked], dtype)
        found = KeyIndex(keys).find(wanted)
        assert found.tolist() == [i for i, n in enumerate(here) if n in set(asked)]
        expected = [i for i, n in enumerate(asked) if n in set(here)]
        assert KeySet.of([keys], dtype).find(wanted).tolist() == expected


def test_key_index_states_its_size() -> None:
    index = KeyIndex(pa.array(np.random.default_rng(0).permutation(1000)))
    assert len(index) == 1000
    assert 16_000 <= index.nbytes <= 17_000
