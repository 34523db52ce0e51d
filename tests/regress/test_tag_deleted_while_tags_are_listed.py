"""Found by the simulator (seed 6009809), and then in Lance: it lists the tags of the base, reads
each, and fails if one was deleted in between. The model skipped such a tag; a pin that was being
handed from one checkpoint to another then seemed absent, and its version was collected.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from weir.lake.pylance_lake import PylanceLake
from weir.store.local import LocalStore

PINS = 8
LOOKS = 150


@pytest.fixture
def lake(tmp_path: Path) -> PylanceLake:
    uri = str(tmp_path / "base")
    for number in range(3):
        lance.write_dataset(pa.table({"a": [number]}), uri, mode="append")
    return PylanceLake(uri, None, LocalStore(uri))


@contextmanager
def pins_come_and_go(lake: PylanceLake) -> Iterator[None]:
    """Another handle keeps handing on the pin of version 1; there are always four or five tags.

    More than one, because a listing of a local folder is not atomic: if one tag replaces another
    during the listing, it may show neither. On a busy machine that happened to two at once.
    """
    over = threading.Event()
    failed: list[BaseException] = []

    def hand_on() -> None:
        other = PylanceLake(lake.uri, None, LocalStore(lake.uri))
        names = [f"pin-{number}" for number in range(PINS)]
        try:
            while not over.is_set():
                for name, next_name in zip(names, [*names[4:], *names[:4]], strict=True):
                    other.protect_version(next_name, 1)
                    other.release_version(name)
        except BaseException as error:
            failed.append(error)

    for number in range(4):
        lake.protect_version(f"pin-{number}", 1)
    thread = threading.Thread(target=hand_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == []


def clean(lake: PylanceLake) -> bool:
    lake.cleanup_old_versions(timedelta(0))
    return 1 in {version["version"] for version in lance.dataset(lake.uri).versions()}


def see(lake: PylanceLake) -> bool:
    return 1 in lake.protected_versions().values()


def add_and_drop(lake: PylanceLake) -> bool:
    lake.protect_version("mine", 1)
    lake.release_version("mine")
    return True


@pytest.mark.parametrize("look", [clean, see, add_and_drop])
def test_a_pin_that_is_handed_on_is_seen_and_no_call_fails(
    lake: PylanceLake, look: Callable[[PylanceLake], bool]
) -> None:
    with pins_come_and_go(lake):
        assert all(look(lake) for _ in range(LOOKS))
