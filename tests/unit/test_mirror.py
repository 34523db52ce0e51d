"""A module's tests are in the file with the matching name."""

from pathlib import Path

UNIT = Path(__file__).parent
ROOT = UNIT.parents[1]
OTHERS = {
    "test_guards.py": "tools/guards.py",
    "test_init.py": "weir/__init__.py",
    "test_mirror.py": "this one",
    "test_tidy.py": "tools/tidy.py",
}


def test_unit_tests_mirror_the_packages() -> None:
    """tests/unit/a/test_b.py tests src/weir/a/b.py, or the package b."""
    lost = []
    for path in UNIT.rglob("test_*.py"):
        place = path.relative_to(UNIT)
        module = ROOT / "src" / "weir" / place.parent / path.stem.removeprefix("test_")
        if not module.is_dir() and not module.with_suffix(".py").exists():
            lost.append(place.as_posix())
    assert sorted(set(lost) - set(OTHERS)) == []
