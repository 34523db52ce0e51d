"""The supported pylance versions: defined in one place, and others refused before any access."""

import re
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.lake import supported

ROOT = Path(__file__).parents[3]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize("version", ["13.0.0", "14.1.0", "15.0.0-beta.1", "nonsense"])
def test_x8_a_version_that_was_not_tried_is_refused(version):
    with pytest.raises(weir.InvalidInput, match=r"pip install 'pylance>=14\.0,<14\.1'"):
        supported.require_supported(version)


@pytest.mark.parametrize("version", ["14.0.0", "14.0.2", "14.0.3-beta.1"])
def test_x8_a_version_of_the_range_is_taken(version):
    supported.require_supported(version)


def test_x8_it_is_refused_before_anything_is_read_or_written(tmp_path, monkeypatch):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    monkeypatch.setattr(supported, "RANGE", ((15, 0), (16, 0)))
    for call in (
        lambda: weir.open(table.uri),
        lambda: weir.create(str(tmp_path / "other"), SCHEMA, primary_key="id"),
        lambda: weir.enable(str(tmp_path / "other")),
    ):
        with pytest.raises(weir.InvalidInput, match="this release of weir supports"):
            call()
    assert not (tmp_path / "other").exists()


def test_x8_the_dependency_says_the_same():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (first, end) = supported.RANGE
    assert f"pylance>={first[0]}.{first[1]},<{end[0]}.{end[1]}" in wanted
    (pinned,) = re.findall(
        r"^pylance==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    supported.require_supported(pinned)
