"""What the tests of Spark share."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark warns of the pandas that is installed; nothing here goes through pandas."""
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")
            )
            if item.get_closest_marker("timeout") is None:  # a file's own time is not cut short
                item.add_marker(pytest.mark.timeout(300))
