"""Shared setup of the Spark tests."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore PySpark's warning about the installed pandas; nothing here goes through pandas."""
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")
            )
            if item.get_closest_marker("timeout") is None:  # a file's own timeout is not shortened
                item.add_marker(pytest.mark.timeout(300))
