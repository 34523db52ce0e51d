"""Fixtures of the whole suite. Servers start at first use, one per xdist worker."""

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.clouds import AzuriteServer, MotoServer, NotInstalledError
from tests.support.fake_gcs import FakeGcs
from tests.support.stores import StoreKind, numbered
from weir.testing.seaweed import SeaweedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The JVM and Spark's workers read these, so they cannot be settings of the session.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

BUCKET = "weir-test"

# No test fails because of time: slowness of a busy machine is not a counterexample.
# CI draws the same examples every time: whether a change lands is not left to chance.
settings.register_profile(
    "weir",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("weir")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the servers its fixtures need."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        call = getattr(item, "callspec", None)
        if "s3" in fixtures or (call and call.params.get("store_kind") == "s3"):
            item.add_marker(pytest.mark.s3)
        if "spark" in fixtures:
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") or item.get_closest_marker("cluster"):
            # One JVM at a time: two do not fit in the memory of a small machine.
            item.add_marker(pytest.mark.xdist_group("spark"))
            # A timeout during a call into the JVM breaks the session for all later tests.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def s3() -> Iterator[SeaweedServer]:
    """A real S3 server with an empty bucket `weir-test`."""
    with SeaweedServer() as server:
        server.make_bucket(BUCKET)
        yield server


def _installed(server: AzuriteServer | MotoServer) -> Iterator[AzuriteServer | MotoServer]:
    """The server with its bucket; if not installed, skip the test, or fail if it is required."""
    try:
        server.start()
    except NotInstalledError as missing:
        if os.environ.get("WEIR_CLOUDS") == "required":
            raise
        pytest.skip(str(missing))
    try:
        server.make_bucket(BUCKET)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzuriteServer | MotoServer]:
    """Azure Blob Storage in Microsoft's emulator, with an empty container `weir-test`."""
    yield from _installed(AzuriteServer())


@pytest.fixture(scope="session")
def moto() -> Iterator[AzuriteServer | MotoServer]:
    """A second, independent implementation of S3, with an empty bucket `weir-test`."""
    yield from _installed(MotoServer())


@pytest.fixture(scope="session")
def gcs() -> Iterator[FakeGcs]:
    """weir's own fake of Google Cloud Storage, with an empty bucket `weir-test`."""
    with FakeGcs() as server:
        server.make_bucket(BUCKET)
        yield server


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print which clouds were not tested; a skip alone is easily overlooked."""
    skipped = terminalreporter.stats.get("skipped", ())
    missing = sorted({str(r.longrepr[2]) for r in skipped if "is not installed" in str(r.longrepr)})
    for reason in missing:
        terminalreporter.write_line(f"NOT TRIED: {reason}", yellow=True)


SCHEMES = {"s3": "s3", "moto": "s3", "azurite": "az", "gcs": "gs"}
"""Fixtures that are servers, and the schemes of their URIs."""


@pytest.fixture(params=["local", "s3"])
def store_kind(request: pytest.FixtureRequest, tmp_path: Path) -> StoreKind:
    """Each kind of store in turn, as (uri_factory, storage_options).

    Choose with `@pytest.mark.parametrize("store_kind", ["local"], indirect=True)`; "azurite",
    "moto" and "gcs" are possible as well.
    """
    if request.param == "local":
        return StoreKind(numbered(str(tmp_path)), {})
    # Requested here and not in the signature, so local tests start no server.
    server = request.getfixturevalue(request.param)
    place = f"{SCHEMES[request.param]}://{BUCKET}/{uuid.uuid4().hex}"
    return StoreKind(numbered(place), server.storage_options())


@pytest.fixture
def table_uri(store_kind: StoreKind) -> str:
    """A URI for a new table; open it with `store_kind.storage_options`."""
    return store_kind.uri_factory()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local Spark session, small and quiet."""
    from pyspark.sql import SparkSession

    from tests.support.spark import SHORT_LIVED

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("weir-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # The page size of a larger heap: what a row-level writer keeps must not depend on it.
        .config("spark.buffer.pageSize", "16m")
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={scratch} {SHORT_LIVED}",
        )
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
