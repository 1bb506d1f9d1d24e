"""The drawing of mutants: what is found, what is left out, and that what is drawn can be applied."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest
from tools import mutants

ROOT = Path(__file__).resolve().parents[2]


def changed(line: str, header: str = "def f(a: int, b: int, c: int) -> int:") -> set[str]:
    """The mutants of one line of a function."""
    text = f"{header}\n    {line}\n"
    return {
        mutants.edited(text, each).splitlines()[-1].strip() for each in mutants.of_text("core/x.py", text)
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("(a) not in b", {"(a) in b"}),
        ("a and b", {"a or b"}),
        ("not (a or b)", {"(a or b)", "not (a and b)"}),
        ("a + b", {"a - b"}),
        ("a - 1", {"a + 1", "a - 2", "a - 0"}),
        ("a += b", {"a -= b", "pass"}),
        ("b = a", {"pass"}),
        ("d = a", set()),
        ("a.run(b)", {"pass"}),
        ("return a", {"return 0"}),
        ("b if a else c", {"b if True else c", "b if False else c"}),
        ("[a for a in b if c]", {"[a for a in b if True]"}),
        ("max(a, b)", {"min(a, b)", "pass"}),
        ("any(a)", {"all(a)", "pass"}),
        ("replace(a, b=b, c=(c))", {"replace(a, c=(c))", "replace(a, b=b)", "pass"}),
        ("f('ü', f'{a + b}' + c, a == b)", {"f('ü', f'{a + b}' + c, a != b)", "pass"}),
        ("log.say(a + b)", set()),
        ("self.log.write_limited(a + b)", set()),
        ("a << b", set()),
        ("a: int | None", set()),
        ('"text"', set()),
    ],
)
def test_what_is_found_in_a_line(line: str, found: set[str]) -> None:
    assert changed(line) == found


@pytest.mark.parametrize(
    ("header", "neutral"),
    [
        ("def f(state: State) -> State:", {"return state"}),
        ("def f(state: State) -> Stepped:", {"return state, ()"}),
        ("def f() -> X | None:", {"return None"}),
        ("def f() -> tuple[int, ...]:", {"return ()"}),
        ("def f() -> Thing:", set()),
        ("def f():", set()),
    ],
)
def test_a_returned_value_becomes_an_empty_one(header: str, neutral: set[str]) -> None:
    assert changed("return a", header) == neutral


def test_the_same_tree_gives_the_same_draw_of_other_programs_that_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "MODULES", mutants.MODULES[:1])
    shutil.copytree(ROOT / mutants.MODULES[0], tmp_path / mutants.MODULES[0])
    drawn = mutants.draw(tmp_path)
    assert drawn == mutants.draw(tmp_path)
    assert len(drawn) == mutants.DRAWN
    for _, mutant in drawn:
        text = mutants.patch(tmp_path, mutant)
        done = subprocess.run(["git", "apply", "--check"], input=text, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, text
        assert mutants.is_another_program(tmp_path, mutant)
        ast.parse(mutants.edited((tmp_path / mutant.path).read_text(), mutant))
    first = drawn[0][0]
    assert first not in dict(mutants.draw(tmp_path, frozenset({first})))


def test_the_repository_has_as_many_as_are_drawn() -> None:
    patches = sorted((ROOT / "tests" / "seeded" / "drawn").glob("*.patch"))
    numbers = {int(path.name[:2]) for path in patches}
    assert len(patches) == mutants.DRAWN
    assert not numbers & set(mutants.EQUIVALENT)


def test_what_was_drawn_is_what_its_tree_gives(tmp_path: Path) -> None:
    done = subprocess.run(
        ["git", "archive", mutants.COMMIT, *mutants.MODULES], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(
            f"the history does not reach back to {mutants.COMMIT[:7]}: {done.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "x"], input=done.stdout, cwd=tmp_path, check=True)
    assert mutants.main(["--tree", str(tmp_path), "--write", str(tmp_path / "drawn")]) == 0
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert names == sorted(path.name for path in (ROOT / "tests" / "seeded" / "drawn").glob("*.patch"))
