"""The configuration file of the command line."""

import pytest

from weir.cli.settings import storage_options
from weir.errors import InvalidInput


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "settings"
    folder.mkdir(mode=0o755)
    path = folder / "config.toml"
    path.write_text('[options]\naws_region = "eu-central-1"\nweir_allow = "s3://logs"\n')
    path.chmod(0o644)
    return path


def test_a_file_that_is_ones_own_is_taken(config):
    found = storage_options("s3://b/t", None, config)
    assert found == {"aws_region": "eu-central-1", "weir_allow": "s3://logs"}


def test_a_configuration_that_others_may_write_to_is_not_taken(config):
    """The configuration chooses the endpoint that credentials are sent to."""
    config.chmod(0o666)
    with pytest.raises(InvalidInput, match="chmod o-w"):
        storage_options("s3://b/t", None, config)
    config.chmod(0o644)
    config.parent.chmod(0o777)
    with pytest.raises(InvalidInput, match="chmod o-w"):
        storage_options("s3://b/t", None, config)
    config.parent.chmod(0o1777)  # like /tmp: nobody else can replace the file
    assert storage_options("s3://b/t", None, config)
