"""The version matrix: weir with every pylance and LanceDB that supports the format.

`make interop` makes an environment for each version (by pip, below .venv/interop, reused by later
runs), runs tests/matrix with that version as the other party, runs tests/interop with weir itself
on each pylance, and writes both tables into docs/compatibility.md. Any failing test fails the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("WEIR_INTEROP", ROOT / ".venv" / "interop"))
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- interop: begin -->", "<!-- interop: end -->"

PYLANCE = ("10.0.0", "11.0.0", "12.0.0", "13.0.0", "14.0.0", "14.0.2")
"""9.0 and older use other names in the format, and have no SSTables."""
LANCEDB = ("0.38.0", "0.39.0", "0.40.0")
WEIR_ON = ("13.0.0", "14.0.0", "14.0.2")
"""Versions that weir itself is tested on; the dependency allows those that pass everything."""

COLUMNS = {
    "test_reads_what_weir_wrote": "reads what weir flushed and compacted",
    "test_is_read_at_once": "weir reads its rows at once",
    "test_killed_and_taken_over": "killed, weir takes over",
    "test_each_fences_the_other": "each fences the other",
    "test_takes_over_weirs_live_log": "takes over an unflushed log of weir's",
    "test_its_tables_are_adopted": "`weir.enable` on its tables",
    "test_is_kept_out_where_it_must": "kept out of a log elsewhere",
    "test_its_upkeep_loses_nothing": "its clean-up loses nothing",
}
NEEDS = ("obstore", "protobuf", "numpy", "click", "rich", "psutil", "hypothesis", "polars")
TESTS = ("pytest", "pytest-timeout")


@dataclass(frozen=True)
class Outcome:
    """The result of one test with one version."""

    test: str
    state: str
    """works, refused, or FAILED."""


def environment(package: str, version: str) -> Path:
    """The python of an environment with that version; the environment is made once."""
    home = HOME / f"{package}-{version}"
    python = home / "bin" / "python"
    done = home / "complete"
    if not done.exists():
        print(f"making {home.name}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        more = (*NEEDS, *TESTS) if package == "pylance" else ()
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "-c", _constraints(), f"{package}=={version}", "pyarrow", *more],
            check=True,
        )  # fmt: skip
        done.touch()
    return python


def _constraints() -> str:
    """A copy of constraints.txt without pylance and the lance packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("pylance", "lance"))]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write("\n".join(kept))
    return file.name


def run(python: Path, *arguments: str, party: str | None = None) -> tuple[list[Outcome], str]:
    """Run pytest; its outcomes, and the last line of its output."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        clean = {k: v for k, v in os.environ.items() if k != "WEIR_PARTY"}
        env = {**clean, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if party is not None:
            env["WEIR_PARTY"] = party
        done = subprocess.run(
            [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider",
             f"--junitxml={report.name}", *arguments],
            cwd=ROOT, env=env, text=True, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            sys.exit(f"pytest could not run:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        found = [_outcome(case) for case in ET.parse(report.name).iter("testcase")]
    if done.returncode:
        print(done.stdout[-3000:])
    return found, done.stdout.strip().splitlines()[-1]


def _outcome(case: ET.Element) -> Outcome:
    name = str(case.get("name")).partition("[")[0]
    if case.find("failure") is not None or case.find("error") is not None:
        return Outcome(name, "FAILED")
    told = [p.get("value") for p in case.iter("property") if p.get("name") == "outcome"]
    return Outcome(name, str(told[0]) if told else "passed")


def parties(chosen: list[str]) -> list[str]:
    """The rows of the table, one for each version of another program."""
    lines = [
        f"| other program | {' | '.join(COLUMNS.values())} |",
        f"| --- |{' --- |' * len(COLUMNS)}",
    ]
    for package, versions in (("pylance", PYLANCE), ("lancedb", LANCEDB)):
        for version in versions:
            if chosen and f"{package}-{version}" not in chosen:
                continue
            python = environment(package, version)
            found, last = run(Path(sys.executable), "tests/matrix", party=f"{package}={python}")
            print(f"{package} {version}: {last}", flush=True)
            states = {outcome.test: outcome.state for outcome in found}
            told = " | ".join(states.get(test, "not run") for test in COLUMNS)
            lines.append(f"| {package} {version} | {told} |")
    return lines


def engines(chosen: list[str]) -> list[str]:
    """The rows of the table, one for each pylance that weir was run on."""
    lines = ["| weir on | tests of the format and of shared tables |", "| --- | --- |"]
    for version in WEIR_ON:
        if chosen and f"weir-{version}" not in chosen:
            continue
        found, last = run(
            environment("pylance", version),
            "-p", "tools.interop_any", "tests/interop", "tests/rules/test_shared_tables.py",
            "--ignore=tests/interop/test_lancedb.py",
            "--ignore=tests/interop/test_three_programs.py",
            "--deselect=tests/interop/test_sstable_pylance.py::test_on_s3",
        )  # fmt: skip
        print(f"weir on pylance {version}: {last}", flush=True)
        failed = sum(outcome.state == "FAILED" for outcome in found)
        passed = len(found) - failed
        told = f"{passed} passed" + (f", {failed} failed: not supported" if failed else "")
        lines.append(f"| pylance {version} | {told} |")
    return lines


def main() -> int:
    """Run the chosen versions; write the tables if all versions were run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="pylance-13.0.0, lancedb-0.40.0, weir-14.0.2, ...")
    only = parser.parse_args().only
    lines = [*parties(only), "", *engines(only)]
    print("\n".join(lines))
    if not only:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}", encoding="utf-8")
    return int(any("FAILED" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
