"""What `SharedDataset` offers can be called while other threads read through the same handle."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from weir.lake.datasets import Datasets
from weir.lake.shared import SharedDataset


@contextmanager
def borrowed(dataset: SharedDataset) -> Iterator[None]:
    """Another thread is inside a call of the handle, again and again."""
    inside, ended = threading.Event(), threading.Event()

    def count() -> None:
        while not ended.is_set():
            inside.set()
            dataset.count_rows("s like '%9999%'")

    thread = threading.Thread(target=count)
    thread.start()
    try:
        assert inside.wait(10)
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    place = tmp_path_factory.mktemp("shared") / "base"
    numbers = np.arange(200_000)
    rows = pa.table({"id": numbers, "s": pa.array(numbers.astype(str))})
    made = lance.write_dataset(rows, place, max_rows_per_file=100_000)
    made.tags.create("kept", 1)
    return Datasets(str(place), None)


USES: dict[str, Callable[[Any], object]] = {
    "uri": lambda dataset: dataset.uri,
    "version": lambda dataset: dataset.version,
    "latest_version": lambda dataset: dataset.latest_version,
    "schema": lambda dataset: dataset.schema,
    "lance_schema": lambda dataset: dataset.lance_schema,
    "max_field_id": lambda dataset: dataset.max_field_id,
    "data_storage_version": lambda dataset: dataset.data_storage_version,
    "stats": lambda dataset: dataset.stats.dataset_stats(),
    "io_stats_snapshot": lambda dataset: dataset.io_stats_snapshot(),
    "tags": lambda dataset: (dataset.tags.list(), dataset.tags.get_version("kept")),
    "config": lambda dataset: dataset.config(),
    "base_paths": lambda dataset: dataset.base_paths(),
    "versions": lambda dataset: dataset.versions(),
    "describe_indices": lambda dataset: dataset.describe_indices(),
    "get_fragments": lambda dataset: dataset.get_fragments(),
    "get_fragment": lambda dataset: dataset.get_fragment(0),
    "scanner": lambda dataset: dataset.scanner(limit=3).to_table(),
    "to_table": lambda dataset: dataset.to_table(limit=3),
    "count_rows": lambda dataset: dataset.count_rows(),
    "merge_insert": lambda dataset: (
        dataset.merge_insert(["id"])
        .when_matched_delete()
        .use_index(False)
        .execute_uncommitted(dataset.to_table(limit=1))
    ),
    "_take_rows": lambda dataset: dataset._take_rows(pa.array([1], pa.uint64()), columns=["id"]),
}


def test_every_call_of_a_shared_handle_is_tried_below() -> None:
    offered = {name for name in vars(SharedDataset) if not name.startswith("__")}
    assert offered - {"_abc_impl", "_is_protocol", "_is_runtime_protocol"} == set(USES)


@pytest.mark.parametrize("name", USES)
def test_a_call_of_a_shared_handle_borrows_it_beside_other_threads(
    shared: Datasets, name: str
) -> None:
    dataset = shared.latest()
    with borrowed(dataset):
        for _ in range(3):
            USES[name](dataset)


def test_a_commit_on_a_shared_handle_leaves_it_as_it_is(tmp_path: Path) -> None:
    numbers = np.arange(100_000)
    rows = pa.table({"id": numbers, "s": pa.array(numbers.astype(str))})
    lance.write_dataset(rows, tmp_path / "base")
    datasets = Datasets(str(tmp_path / "base"), None)
    dataset = datasets.latest()
    with borrowed(dataset):
        transaction = lance.Transaction(
            read_version=1, operation=lance.LanceOperation.Append(fragments=[])
        )
        assert datasets.commit(dataset, transaction) == 2
    assert dataset.version == 1


def test_a_handle_of_its_own_is_nobody_elses(shared: Datasets) -> None:
    assert shared.own() is not shared.own()
    assert shared.latest() is shared.latest()


def test_the_known_handle_of_an_empty_base_is_opened_once(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "base")
    datasets = Datasets(str(tmp_path / "base"), None)
    assert datasets.known() is datasets.known()
