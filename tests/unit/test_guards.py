"""The tool leaves out what a mark says, and refuses a mark that proves nothing."""

from pathlib import Path

import pytest

from tools import guards


def changed(source: str) -> str:
    (guard,) = guards.guards_of("x.py", source)
    return guards.without_guard(source, guard)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a:  # guard: F-4\n    b()", "if False:"),
        ("if a:  # guard: F-4 always\n    b()", "if True:"),
        ("if a and b:  # guard: F-4 last\n    b()", "if a and True:"),
        ("if a or b:  # guard: F-4 first\n    b()", "if False or b:"),
        ("if (a := b()):  # guard: F-4\n    c(a)", "if ((((a := b())), False)[1]):"),
        ("# guard: F-4\n\n# why\nraise a", "pass"),
        ("a()  # guard: F-4 test_f4_x", "pass"),
        ("while a:  # guard: F-4\n    b()", "while False:"),
        ("for a in b:  # guard: F-4\n    c()", "for a in ():"),
        ("with a:  # guard: F-4\n    b()", "if True:"),
        ("def a():\n    return b == c  # guard: F-4", "    return False"),
        ("def a():\n    return b if c else d  # guard: F-4 always", "    return b if True else d"),
        ("def a():  # guard: F-4\n    b()", "    return None"),
        ("try:\n    a()\nexcept B:  # guard: F-4\n    c()", "    raise"),
        ("a(\n    b=1,  # guard: F-4\n)", "    **{},"),
        ("a = [\n    b,  # guard: F-4\n]", "    *(),"),
        ("a = (\n    b\n    and c  # guard: F-4\n)", "    and True"),
        ("a = [b for b in c if b]  # guard: F-4 always", "a = [b for b in c if True]"),
    ],
)
def test_what_begins_in_the_line_is_left_out(before: str, after: str) -> None:
    lines = [line.partition("  # guard")[0] for line in changed(before).splitlines()]
    assert after in lines


@pytest.mark.parametrize(
    "source",
    [
        "def a():\n    b = c()  # guard: F-4\n    return b",  # only a NameError would be seen
        "pass  # guard: F-4",
        "a = (\n    b\n    + c  # guard: F-4\n)",
        "if a:  # guard: F-4 last\n    b()",
    ],
)
def test_a_mark_that_proves_nothing_is_refused(source: str) -> None:
    with pytest.raises(guards.GuardError):
        changed(source)


def project(tmp_path: Path, source: str) -> Path:
    (tmp_path / "docs/internals").mkdir(parents=True)
    text = (
        "**F-4 The fence is validated.**\n\n| C-6 | a value |\n\n**C-6 Epochs.**\n**K-1 Pins.** x\n"
    )
    (tmp_path / guards.RULES).write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_fences.py").write_text("def test_f4_a_fence() -> None: ...\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text(source)
    return tmp_path


def test_a_rule_without_a_guard_or_a_reason_is_reported(tmp_path: Path) -> None:
    root = project(tmp_path, "a()  # guard: F-4\n")
    assert guards.check(root) == ["K-1: no guard"]


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("F-9", "no such rule"),
        ("F-4 test_gone", "no test is called test_gone"),
        ("K-1", "none is named after the rule"),
        ("C-6 test_fences", "says why it has none"),
    ],
)
def test_a_mark_that_names_what_does_not_exist_is_reported(
    tmp_path: Path, mark: str, problem: str
) -> None:
    problems = guards.check(project(tmp_path, f"a()  # guard: {mark}\n"))
    assert any(problem in one for one in problems)


def test_a_mark_without_a_test_is_tried_by_the_tests_of_its_rule(tmp_path: Path) -> None:
    root = project(tmp_path, "a()  # guard: F-4\n")
    (guard,) = guards.all_guards(root)
    assert guards.noticed_by(guard, root) == ["tests/test_fences.py::test_f4_a_fence"]
