"""The checker of signposts finds names of files that are gone, and no others."""

from __future__ import annotations

from tools import signposts


def test_a_path_is_known_by_each_of_its_ends():
    assert list(signposts.ends(["core/seen/view.py"])) == ["core/seen/view.py", "seen/view.py", "view.py"]


def test_comments_and_docstrings_are_read_and_code_is_not():
    text = '"""As in seen/view.py, and `fold.py`."""\nopen("gone.py")  # see machine/step.py\n'
    assert list(signposts.signs(text, is_markdown=False)) == ["seen/view.py", "fold.py", "machine/step.py"]


def test_fenced_code_of_a_page_is_not_read():
    page = "In `crd.py`:\n```bash\npython mine.py\n```\nand (/tmp/other.py) too: core/decide.py.\n"
    assert list(signposts.signs(page, is_markdown=True)) == ["crd.py", "core/decide.py"]


def test_a_sign_that_leads_nowhere_is_reported(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(signposts, "ROOT", tmp_path)
    monkeypatch.setattr(signposts, "tracked", lambda: ["a.py", "b.md"])
    (tmp_path / "a.py").write_text("# a.py, train.py, c.py\n")
    (tmp_path / "b.md").write_text("`a.py`\n")
    assert signposts.main() == 1
    assert capsys.readouterr().out == "a.py: c.py is no file here\n"


def test_imports_are_looked_up_in_text_too(monkeypatch, tmp_path):
    monkeypatch.setattr(signposts, "ROOT", tmp_path)
    folder = tmp_path / "operator" / "ropeteam" / "core"
    folder.mkdir(parents=True)
    (folder / "view.py").write_text("from x import y as z\nLIMIT = 3\ndef look(): pass\n")
    packages = signposts.Packages({"operator/ropeteam/core/view.py"})
    text = "CODE = 'from {} import LIMIT, look, gone, z; look()'".format("ropeteam.core.view")
    found = list(signposts.imports(text))
    assert [name for module, name in found if packages.has(module, name)] == ["LIMIT", "look", "z"]
    assert packages.has("ropeteam.core", "view")
    assert not packages.has("ropeteam.core.gone", "look")


def test_a_name_behind_a_file_is_one_that_it_binds(monkeypatch, tmp_path):
    monkeypatch.setattr(signposts, "ROOT", tmp_path)
    (tmp_path / "operator" / "core").mkdir(parents=True)
    (tmp_path / "operator" / "core" / "view.py").write_text("def look(): pass\n")
    packages = signposts.Packages({"operator/core/view.py"})
    page = "As `core/view.py:look` and `view.py:gone` do.\n```\nview.py:other\n```\n"
    found = list(signposts.symbols(page))
    assert found == [("core/view.py", "look"), ("view.py", "gone")]
    assert [name for sign, name in found if packages.binds(sign, name)] == ["look"]
