"""The policy file of `weir keep`: defaults, exceptions by pattern, errors that name the line."""

from pathlib import Path
from textwrap import dedent

import pytest

import weir
from weir.keep.policy import KeeperPolicy, load

WHOLE = """
    every = "30s"                # a comment
    jobs = 4
    requests_per_second = 100
    bytes_per_second = 50_000_000

    [defaults]
    take_over = "1h"
    compact = { generations = 4, age = false }

    [[defaults.checkpoints]]
    name = "daily"
    every = "1d"
    keep = "14d"

    [[tables]]
    match = "*/scratch/*"
    gc = "10m"
    compact = false

    [[tables]]
    match = "audit"
    gc = false
    [tables.compact]
    bytes = 1000

    [[tables]]
    match = "*/scratch/old"
    skip = true
"""


def policy(tmp_path: Path, text: str) -> KeeperPolicy:
    path = tmp_path / "keep.toml"
    path.write_text(dedent(text))
    return load(path)


def test_rules_that_fit_apply_in_order_to_the_defaults(tmp_path: Path) -> None:
    found = policy(tmp_path, WHOLE)
    assert (found.every, found.jobs, found.find) == ("30s", 4, "5m")
    assert (found.requests_per_second, found.bytes_per_second) == (100, 50_000_000)
    plain = found.of("s3://lake/events")
    assert plain == weir.KeepPolicy(
        take_over="1h",
        compact=weir.CompactionPolicy(generations=4, age=None),
        checkpoints=[weir.CheckpointSchedule("daily", "1d", "14d")],
    )
    scratch = found.of("s3://lake/scratch/new")
    assert scratch is not None
    assert (scratch.gc, scratch.compact, scratch.take_over) == ("10m", None, "1h")
    audit = found.of("s3://lake/audit")
    assert audit is not None
    assert (audit.gc, audit.compact) == (None, weir.CompactionPolicy(4, 1000, None))
    assert found.of("s3://lake/scratch/old") is None


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert policy(tmp_path, "").of("anything") == weir.KeepPolicy()
    assert policy(tmp_path, "[defaults]\ncompact = {}").of("anything") == weir.KeepPolicy()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("every = 'soon'", 1, "every: expected seconds"),
        ("find = 9\nevery = 0", 2, "every: must be above zero"),
        ("[defaults]\n\ncompact = 8", 3, "defaults.compact: expected a table"),
        ("\njobs = 0", 2, "jobs: expected a number from 1 to 64"),
        ("jobs = 1\nspark_bytes = '1G'", 2, "spark_bytes: expected a number of bytes"),
        ("\nrequests_per_second = 0", 2, "requests_per_second: expected a whole number above 0"),
        ("requests_per_second = 1.5", 1, "requests_per_second: expected a whole number above 0"),
        ("\n\nbytes_per_second = 9", 3, "bytes_per_second: expected a whole number, at least"),
        ("bytes_per_second = '50M'", 1, "bytes_per_second: expected a whole number, at least"),
        ("\n\nevrey = 1", 3, "evrey: there is no such setting"),
        ("[defaults]\ngc = '1h'\ntakeover = '1h'", 3, "defaults.takeover: there is no such"),
        ("[defaults]\n\ngc = true", 3, "defaults.gc: expected seconds"),
        ("[defaults]\ncompact = { genrations = 1 }", 2, "defaults.compact.genrations: there is no"),
        ("[defaults.compact]\n\nbytes = 'x'", 3, "defaults.compact.bytes: expected a whole number"),
        ("[[tables]]\nmatch='a'\n\n[[tables]]\ngc = '1h'", 4, "tables.match: a rule needs a"),
        ("[[tables]]\nmatch='a'\n[[tables]]\nmatch='b'\nskip='x'", 5, "tables.skip: expected true"),
        ("[tables]\nmatch='a'", 1, "tables: write [[tables]], with two brackets"),
        (
            "[[defaults.checkpoints]]\nevery='1h'",
            1,
            "defaults.checkpoints: a schedule needs a name",
        ),
        ("[[defaults.checkpoints]]\nname='a'\nevery='x'", 3, "defaults.checkpoints.every"),
        ("[defaults]\nmin_age = '9d'", 2, "fence_retention must be at least min_age"),
        ("defaults = 3", 1, "defaults: expected a table"),
        ("\nevery = 1" + "0" * 400, 2, "every: must be zero or more and finite"),
    ],
)
def test_an_error_names_the_file_the_line_and_the_setting(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(weir.InvalidInput) as raised:
        policy(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/keep.toml, line {line}: ")
    assert said in str(raised.value)


def test_wrong_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(weir.InvalidInput, match=r"keep.toml is not valid TOML.*line 2"):
        policy(tmp_path, "every = 1\njobs = = 2")


@pytest.mark.parametrize("value", ["[" * 20_000, "9" * 20_000])
def test_toml_that_no_parser_takes_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(weir.InvalidInput, match=r"keep.toml is not valid TOML"):
        policy(tmp_path, f"every = {value}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(weir.InvalidInput, match=r"cannot read the policy .*none\.toml"):
        load(tmp_path / "none.toml")
