"""Takes one guarded line after the other out of a copy of the tree; a test must notice each.

A guard is a comment at the line that keeps a rule of docs/internals/rules.md, or right above it:

    # guard: RULE [WORD] [TEST ...]

What is done follows from what begins in that line. The condition of an `if` or a `while` never
holds, and neither does what a `return` gives. A loop has nothing to go through, a `with` holds
nothing, an `except` catches nothing, a function returns at once. An operand of `and` or `or`, an
argument, an element, or the condition of a comprehension is left out. Any other statement is
removed. WORD changes that: the condition in the line is true `always` or `never`, or is without
its `first` or `last` operand.

TEST is the name of a test or of a file of tests, or `simulator`, or `simulator:SCENARIO`. Without
one, the tests that are named after the rule must notice: `test_f4_...` for F-4.
"""

import argparse
import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = "docs/internals/rules.md"
TIMEOUT_SECONDS = 900
SIMULATED_SEEDS = 3000
MARK = re.compile(r"#\s*guard:\s*(.+)$")
WORDS = ("always", "never", "first", "last")
RULE = re.compile(r"^\*\*([A-Z]-\d+[a-z]?) ", re.MULTILINE)
UNGUARDED = re.compile(r"^\| ([A-Z]-\d+[a-z]?) \| \S", re.MULTILINE)
BROKEN = re.compile(r"\b(NameError|UnboundLocalError|SyntaxError|ImportError)\b")


class GuardError(Exception):
    """A mark that means nothing."""


@dataclass(frozen=True)
class Guard:
    """One mark: where it is, the rule it keeps, and who must notice that it is gone."""

    file: str
    line: int
    """Of the code, not of a comment above it."""
    rule: str
    word: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.rule} {self.word}".rstrip()


def guards_of(file: str, text: str) -> Iterator[Guard]:
    """The marks of one file."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        mark = MARK.search(token.string) if token.type == tokenize.COMMENT else None
        if mark is None:
            continue
        line = token.start[0]
        if lines[line - 1].lstrip().startswith("#"):
            line += 1
            while not lines[line - 1].strip() or lines[line - 1].lstrip().startswith("#"):
                line += 1
        rule, *rest = mark[1].split()
        word = rest.pop(0) if rest and rest[0] in WORDS else ""
        yield Guard(file, line, rule, word, tuple(rest))


def all_guards(root: Path = ROOT) -> list[Guard]:
    """Every mark of the project, by file and line."""
    found: list[Guard] = []
    for folder in ("src", "simulator"):
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "guard:" in text:
                found += guards_of(str(path.relative_to(root)), text)
    return found


# ---- what happens to the line ------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """A node whose text is replaced."""

    node: ast.AST
    text: str

    def apply(self, source: str) -> str:
        """The source with the replacement in it."""
        lines = source.encode().splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        begin = starts[self.node.lineno - 1] + self.node.col_offset  # type: ignore[attr-defined]
        end = starts[self.node.end_lineno - 1] + self.node.end_col_offset  # type: ignore[attr-defined]
        data = source.encode()
        return (data[:begin] + self.text.encode() + data[end:]).decode()


def without_guard(source: str, guard: Guard) -> str:
    """The source without what the mark guards; `GuardError` if there is nothing like that."""
    tree = ast.parse(source)
    here = [node for node in ast.walk(tree) if getattr(node, "lineno", 0) == guard.line]
    statement = next((node for node in here if isinstance(node, ast.stmt)), None)
    edit = _edit_statement(tree, statement, guard.word) if statement else _edit_part(tree, guard)
    changed = edit.apply(source)
    try:
        after = ast.parse(changed)
    except SyntaxError as error:
        raise GuardError(f"{guard}: cannot be left out: {error}") from error
    if ast.dump(after) == ast.dump(tree):
        raise GuardError(f"{guard}: leaving it out changes nothing")
    return changed


def _edit_statement(tree: ast.Module, node: ast.stmt, word: str) -> Edit:
    if isinstance(node, ast.If | ast.While) or word:
        return _edit_condition(_condition(node), word)
    match node:
        case ast.Return(value=ast.expr() as value):
            return _edit_condition(value, word)
        case ast.For():
            return Edit(node.iter, "()")
        case ast.With() if not any(item.optional_vars for item in node.items):
            header = ast.Pass(lineno=node.lineno, col_offset=node.col_offset)
            last = node.items[-1].context_expr
            header.end_lineno, header.end_col_offset = last.end_lineno, last.end_col_offset
            return Edit(header, "if True")
        case ast.FunctionDef():
            return Edit(_joined(node.body), "return None")
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            _require_bound_elsewhere(tree, node, name)
    return Edit(node, "pass")


def _joined(body: list[ast.stmt]) -> ast.AST:
    whole = ast.Pass(lineno=body[0].lineno, col_offset=body[0].col_offset)
    whole.end_lineno, whole.end_col_offset = body[-1].end_lineno, body[-1].end_col_offset
    return whole


def _condition(node: ast.AST) -> ast.expr:
    """What decides in the statement: its test, or that of the first expression that has one."""
    if isinstance(node, ast.If | ast.While):
        return node.test
    for found in ast.walk(node):
        if isinstance(found, ast.IfExp):
            return found.test
        if isinstance(found, ast.comprehension) and found.ifs:
            return found.ifs[0]
        if isinstance(found, ast.BoolOp):
            return found
    value = getattr(node, "value", None)
    if not isinstance(value, ast.expr):
        raise GuardError(f"line {node.lineno}: nothing is decided there")  # type: ignore[attr-defined]
    return value


def _edit_condition(condition: ast.expr, word: str) -> Edit:
    if word in ("first", "last"):
        whole = next((one for one in ast.walk(condition) if isinstance(one, ast.BoolOp)), None)
        if whole is None:
            raise GuardError(f"line {condition.lineno}: no operands")
        return _leave_out(whole, whole.values[0 if word == "first" else -1])
    return _constant(condition, value=word == "always")


def _leave_out(whole: ast.BoolOp, operand: ast.expr) -> Edit:
    return _constant(operand, value=isinstance(whole.op, ast.And))


def _constant(condition: ast.expr, *, value: bool) -> Edit:
    # Names that the condition binds are used further down.
    if any(isinstance(one, ast.NamedExpr) for one in ast.walk(condition)):
        return Edit(condition, f"(({ast.unparse(condition)}), {value})[1]")
    return Edit(condition, str(value))


def _edit_part(tree: ast.Module, guard: Guard) -> Edit:
    """A line inside a statement: the outermost part that begins there."""
    found: list[tuple[int, int, Edit]] = []
    for node in ast.walk(tree):
        for part, text in _parts(node):
            if part.lineno == guard.line:  # type: ignore[attr-defined]
                size = part.end_lineno - part.lineno  # type: ignore[attr-defined]
                edit = _edit_word(part, guard.word) if guard.word else text
                found.append((part.col_offset, -size, edit))  # type: ignore[attr-defined]
    if not found:
        raise GuardError(f"{guard}: nothing that can be left out begins there")
    return min(found, key=lambda one: one[:2])[2]


def _edit_word(part: ast.AST, word: str) -> Edit:
    return _edit_condition(part if isinstance(part, ast.Compare) else _condition(part), word)


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, Edit]]:
    match node:
        case ast.BoolOp():
            for value in node.values:
                yield value, _leave_out(node, value)
        case ast.comprehension():
            for test in node.ifs:
                yield test, _constant(test, value=True)
        case ast.IfExp():
            yield node.test, _constant(node.test, value=False)
        case ast.ExceptHandler():
            yield node, Edit(_joined(node.body), "raise")
        case ast.Call():
            for argument in node.args:
                yield argument, Edit(argument, "*()")
            for keyword in node.keywords:
                yield keyword, Edit(keyword, "**{}")
        case ast.Tuple() | ast.List() | ast.Set():
            for element in node.elts:
                yield element, Edit(element, "*()")


def _require_bound_elsewhere(tree: ast.Module, node: ast.stmt, name: str) -> None:
    """Without its only assignment a name is an error wherever it is used, which proves nothing."""
    scopes = [
        scope
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef) and any(one is node for one in ast.walk(scope))
    ]
    scope = scopes[-1] if scopes else tree
    stored = [
        one
        for one in ast.walk(scope)
        if (isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store))
        or (isinstance(one, ast.arg) and one.arg == name)
    ]
    if len(stored) < 2:
        raise GuardError(f"line {node.lineno}: {name} has no other value")


# ---- who must notice ---------------------------------------------------------------------------


@cache
def known_rules(root: Path = ROOT) -> tuple[str, ...]:
    """The numbers of all rules."""
    return tuple(RULE.findall((root / RULES).read_text(encoding="utf-8")))


@cache
def _known_tests(root: Path) -> dict[str, tuple[str, ...]]:
    """Names of tests and of files of tests, each with what to call pytest with."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = str(path.relative_to(root))
        found.setdefault(path.stem, []).append(file)
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE):
            found.setdefault(name, []).append(f"{file}::{name}")
    return {name: tuple(paths) for name, paths in found.items()}


def noticed_by(guard: Guard, root: Path = ROOT) -> list[str]:
    """What pytest is called with; the simulator is not among it."""
    known = _known_tests(root)
    named = [one for one in guard.tests if not one.startswith("simulator")]
    if guard.tests:
        return [path for one in named for path in known.get(one, ())]
    # test_c9a_... and test_c9b_... both test C-9, but K-1b is a rule of its own.
    letter = "" if guard.rule + "b" in known_rules(root) else "[a-z]?"
    plain = re.compile(rf"test_{guard.rule.replace('-', '').lower()}{letter}_")
    return [path for one, paths in known.items() if plain.match(one) for path in paths]


def check(root: Path = ROOT) -> list[str]:
    """What is wrong with the marks, and the rules that have none."""
    problems: list[str] = []
    found, known = all_guards(root), known_rules(root)
    for guard in found:
        if guard.rule not in known and guard.rule.rstrip("abc") not in known:
            problems.append(f"{guard}: no such rule in {RULES}")
        problems += [
            f"{guard}: no test is called {name}"
            for name in guard.tests
            if not name.startswith("simulator") and name not in _known_tests(root)
        ]
        if not guard.tests and not noticed_by(guard, root):
            problems.append(f"{guard}: name a test: none is named after the rule")
        try:
            without_guard((root / guard.file).read_text(encoding="utf-8"), guard)
        except GuardError as error:
            problems.append(f"{guard}: {error}")
    kept = {guard.rule for guard in found} | {guard.rule.rstrip("abc") for guard in found}
    excused = set(UNGUARDED.findall((root / RULES).read_text(encoding="utf-8")))
    problems += [f"{rule}: no guard" for rule in known if rule not in kept | excused]
    problems += [
        f"{rule}: has a guard, and {RULES} says why it has none" for rule in kept & excused
    ]
    return problems


# ---- runs --------------------------------------------------------------------------------------


def copy_tree(target: Path) -> None:
    """Copy the folders that tests need, without version control and environments."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "simulator", "tools", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in ("pyproject.toml", "mkdocs.yml", "README.md", "constraints.txt"):
        shutil.copy(ROOT / name, target / name)


def commands(guard: Guard) -> Iterator[list[str]]:
    """The runs one of which must fail."""
    tests = noticed_by(guard)
    if tests:
        yield ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    for name in guard.tests:
        if name.startswith("simulator"):
            _, _, scenario = name.partition(":")
            chosen = ["--scenario", scenario.replace("_", " ")] if scenario else []
            seeds = ["--seeds", str(SIMULATED_SEEDS), "--jobs", "2", "--fail-fast"]
            yield ["-m", "simulator.soak", *seeds, *chosen]


def _run(tree: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    path = f"{tree / 'src'}{os.pathsep}{tree}"
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def judge(guard: Guard) -> tuple[str, str]:
    """The verdict (caught, survived or broken), and the line that says how."""
    with tempfile.TemporaryDirectory(prefix="weir-guard-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        path = tree / guard.file
        path.write_text(without_guard(path.read_text(encoding="utf-8"), guard), encoding="utf-8")
        for command in commands(guard):
            try:
                done = _run(tree, command)
            except subprocess.TimeoutExpired:
                continue  # no test failed in that time, which proves nothing
            if done.returncode == 0:
                continue
            how = evidence(done.stdout)
            if done.returncode != 1 or BROKEN.search(how):
                return "broken", how or evidence(done.stderr)
            # A test that fails all the same proves nothing either.
            test = how.partition(" - ")[0]
            if test.startswith("tests/") and _run(ROOT, ["-m", "pytest", "-q", test]).returncode:
                return "broken", f"fails without the change too: {how}"
            return "caught", how
    return "survived", ""


def evidence(output: str) -> str:
    """The line of the output that names what was found."""
    for line in output.splitlines():
        if line.strip().startswith("make sim SEED="):
            return line.strip().removeprefix("make sim ")[:110]
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.partition(" ")[2].strip()[:200]
    return (output.strip().splitlines() or [""])[-1][:110]


def main() -> int:
    """Check the marks, or try the chosen ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rules", nargs="*", help="only guards of these rules, or of these files")
    parser.add_argument("--check", action="store_true", help="only look at the marks")
    args = parser.parse_args()
    problems = check()
    print("\n".join(problems), end="\n" if problems else "")
    if problems or args.check:
        return 1 if problems else 0
    chosen = [
        guard
        for guard in all_guards()
        if not args.rules or any(one in (guard.rule, guard.file) for one in args.rules)
    ]
    lost = 0
    for guard in chosen:
        began = time.perf_counter()
        verdict, how = judge(guard)
        lost += verdict != "caught"
        print(f"{verdict:9} {time.perf_counter() - began:5.0f} s  {guard}: {how}", flush=True)
    print(f"{len(chosen) - lost} of {len(chosen)} guards are needed, and a test says so")
    return 1 if lost or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
