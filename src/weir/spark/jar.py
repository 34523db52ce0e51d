"""The jar of the catalog: where it is, and how it is built from the sources beside this file.

`python -m weir.spark.jar` builds it with `javac` alone, against the jars of the installed PySpark.
The same sources and the same compiler give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from weir.errors import InvalidInput

HERE: Final = Path(__file__).parent
SOURCES: Final = HERE / "java"
RELEASE: Final = "17"
"""The oldest Java that Spark 4 supports."""
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the jar: the earliest that a zip can store."""


def path() -> Path:
    """Where the jar is, or would be: one for each minor version of Spark."""
    import pyspark

    minor = ".".join(pyspark.__version__.split(".")[:2])
    return HERE / "jars" / f"weir-spark-{minor}.jar"


def require() -> Path:
    """The jar; when this installation has none, `InvalidInput` says how to get it."""
    found = path()
    if not found.is_file():
        raise InvalidInput(
            f"{found.name} is not in this installation; catalog names and SQL need it. Build it"
            " with `python -m weir.spark.jar` (needs javac from a JDK, Debian's"
            " openjdk-17-jdk-headless), or install a lance-weir wheel, which contains it. Without"
            " the jar, tables are read and written by path"
        )
    return found


def compiler() -> str | None:
    """The `javac` of JAVA_HOME or the PATH; None without a JDK."""
    home = os.environ.get("JAVA_HOME")
    own = shutil.which("javac", path=f"{home}/bin") if home else None
    return own or shutil.which("javac")


def build(target: Path | None = None) -> Path:
    """Compile and pack the sources into the jar; `InvalidInput` without a JDK."""
    import pyspark

    javac = compiler()
    if javac is None:
        raise InvalidInput(
            "there is no javac: install a JDK of at least version 17 (Debian's"
            " openjdk-17-jdk-headless), or set JAVA_HOME to one"
        )
    target = target or path()
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    with tempfile.TemporaryDirectory() as folder:
        command = [
            javac,
            "-d",
            folder,
            "-cp",
            str(jars),
            "--release",
            RELEASE,
            "-encoding",
            "UTF-8",
        ]
        command += ["-g:source,lines", "-Xlint:all,-path,-classfile", "-Werror", "-proc:none"]
        command += [str(source) for source in sorted(SOURCES.rglob("*.java"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise InvalidInput(f"javac failed ({done.returncode}): {done.stdout}{done.stderr}")
        _pack(Path(folder), target)
    return target


def _pack(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as jar:
        manifest = "Manifest-Version: 1.0\r\n\r\n"
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _TIME), manifest)
        for file in sorted(folder.rglob("*.class")):
            name = file.relative_to(folder).as_posix()
            jar.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes())
    part.replace(target)


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
