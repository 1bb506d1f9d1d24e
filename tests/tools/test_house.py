"""The house-number checker finds what is over a limit, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import house
from tools.house import Breach


def measured(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, pure: bool = False) -> list[str]:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    file = tmp_path / "room.py"
    file.write_text(text)
    return [f"{name}: {text}" for name, text in house.measure(file, pure).breaches]


def function(name: str, lines: int, parameters: str = "") -> str:
    return f"def {name}({parameters}):\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["room.py: no module docstring"]),
        ('"""A."""\n' + "x = 1\n" * 399, []),
        ('"""A."""\n' + "x = 1\n" * 400, ["room.py: 401 lines, the limit is 400"]),
        ('"""A."""\n' + function("f", 50), []),
        ('"""A."""\n' + function("f", 51), ["room.py:f: 51 lines, the limit is 50"]),
        ('"""A."""\n' + function("test_f", 41), ["room.py:test_f: 41 lines, the limit is 40"]),
        ('"""A."""\nasync ' + function("f", 51), ["room.py:f: 51 lines, the limit is 50"]),
        ('"""A."""\n' + function("f", 2, "a, b, c, d, /, e, f, *g, h, **i"), []),
        (
            '"""A."""\n' + function("f", 2, "a, b, c, d, e, f, *, g, h"),
            ["room.py:f: 8 parameters, the limit is 7"],
        ),
        ('"""A."""\n' + function("f", 2, "self, a, b, c, d, e, f, g"), []),
        ('"""A."""\ndef f(:\n', ["room.py: line 2: not Python: invalid syntax"]),
    ],
)
def test_a_file_is_measured(
    tmp_path: Path, text: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(tmp_path, text, monkeypatch) == expected


def test_pure_packages_have_fewer_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '"""A."""\n' + function("f", 2, "a, b, c, d, e, f")
    assert measured(tmp_path, text, monkeypatch, pure=True) == ["room.py:f: 6 parameters, the limit is 5"]


def test_only_a_pure_package_may_call_itself_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    for name, pure, expected in [
        ("operator/x.py", False, 1),
        ("operator/x.py", True, 0),
        ("tests/x.py", False, 0),
    ]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('"""Decisions. Pure."""\n')
        assert [breach.name for breach in house.measure(file, pure).breaches] == [name] * expected


def test_a_package_is_small_and_its_index_names_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    index = tmp_path / "shop" / "__init__.py"
    (tmp_path / "shop" / "cellar").mkdir(parents=True)
    for name in ("desk.py", "indesk.py", "__main__.py", "cellar/__init__.py"):
        (index.parent / name).touch()
    index.write_text('"""A shop: indesk.py, and below it cellar/."""')
    assert list(house.of_package(index)) == [
        Breach("shop/desk.py", "is not named in the docstring of its package")
    ]
    for number in range(14):
        (index.parent / f"shelf{number}.py").touch()
    assert Breach("shop", "17 modules and packages, the limit is 16") in house.of_package(index)


def test_only_one_place_makes_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    for name, expected in [("trainer-image/x.py", 2), (house.MAKES_TASKS, 0), ("tests/x.py", 0)]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('"""A."""\nasyncio.create_task(work())\nloop.create_task(work())\n')
        found = house.measure(file, False).breaches
        assert [breach.name for breach in found] == [name] * expected


def test_only_one_module_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    text = '"""A."""\n' + "".join(function(name, 2) for name in ("until", "_wait_for_async", "wait_step"))
    method = "class Link:\n    def wait_for(self):\n        x = 1\n"
    method += "asyncio.wait_for(x, 1)\n"
    for name, expected in [("tests/x.py", 3), (house.WAITS, 0), ("operator/x.py", 0)]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + method)
        found = house.measure(file, False).breaches
        assert [breach.name for breach in found] == [name] * expected


def test_an_exception_counts_until_nothing_needs_it() -> None:
    breaches = [Breach("a.py", "401 lines"), Breach("b.py:f", "51 lines")]
    assert house.problems_of(breaches, {"b.py:f": "a table"}) == ["a.py: 401 lines"]
    assert house.problems_of([], {"b.py:f": "a table"}) == [
        "b.py:f: no longer over a limit; remove its exception"
    ]


def test_nine_of_ten_functions_must_be_short() -> None:
    assert house.tail([30] * 10 + [50]) == []
    assert house.tail([31] * 2 + [5] * 8) == [Breach("p90", "of function length is 31, the limit is 30")]


def test_the_files_of_pure_packages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--pure"]) == 0
    assert "operator/ropeteam/core/decision.py" in capsys.readouterr().out.splitlines()
