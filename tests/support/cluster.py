"""A standalone Spark cluster from the pip package: a master and two workers, each a process.

The workers listen on two loopback addresses, so Spark treats them as two hosts and speculative
execution has a second host for its copies.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark
from pyspark.sql import SparkSession

from tests.support.spark import SHORT_LIVED

HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A cluster to use in a `with` statement; it ends only the processes it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self._port))
        self._await_port(self._port)
        for number in (1, 2):
            self._start(
                "worker.Worker",
                *("--host", f"127.0.0.{number}", "-c", "1", "-m", "900M"),
                *("-d", str(self._folder / f"work{number}"), self.url),
            )
        return self

    def _start(self, kind: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        ui = ("--webui-port", str(free_port()))
        with (self._folder / f"{kind}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *ui, *arguments], env=environment, stdout=log, stderr=log
                )
            )

    def _await_port(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError("the Spark master did not start")

    def session(self, **settings: str) -> SparkSession:
        """A session on this cluster, with eager speculative execution."""
        builder = (
            SparkSession.builder.master(self.url)
            .appName("weir-cluster")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", SHORT_LIVED)
            .config("spark.executor.extraJavaOptions", SHORT_LIVED)
            .config("spark.executor.memory", "600m")
            .config("spark.executor.cores", "1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.speculation", "true")
            .config("spark.speculation.multiplier", "1.1")
            .config("spark.speculation.quantile", "0.3")
            .config("spark.speculation.interval", "200ms")
            .config("spark.speculation.minTaskRuntime", "500ms")
            .config("spark.speculation.efficiency.enabled", "false")
        )
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def executors(self, spark: SparkSession) -> list[int]:
        """Process ids of this application's executors."""
        wanted = spark.sparkContext.applicationId
        found = []
        for worker in self._processes[1:]:
            for child in psutil.Process(worker.pid).children(recursive=True):
                try:
                    line = " ".join(child.cmdline())
                except psutil.Error:
                    continue  # it has exited, or is exiting
                if "CoarseGrainedExecutorBackend" in line and wanted in line:
                    found.append(child.pid)
        return found

    def kill_executor(self, spark: SparkSession) -> None:
        """Kill one executor with SIGKILL, as in a crash."""
        pids = self.executors(spark)
        assert pids, "no executor is running"
        os.kill(pids[-1], signal.SIGKILL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            process.kill()
            process.wait()
