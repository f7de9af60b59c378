"""What holds for the whole distribution: imports only go down, the wheel's names, what importing costs."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ["tasks", "interp", "analyses"]


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_only_go_down(floor):
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    files = list((ROOT / floor).rglob("*.py"))
    assert files
    # interp/__init__.py names `analyses` for type checkers only; at run time it is imported when asked for.
    wrong = [path for path in files if path != ROOT / "interp/__init__.py" and imported_packages(path) & above]
    assert wrong == []


@pytest.mark.slow
def test_the_wheel_has_exactly_three_typed_packages(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == set(FLOORS)
    assert {f"{package}/py.typed" for package in FLOORS} <= set(names)
    assert {"analyses/report/page.html.jinja", "analyses/report/page.css", "analyses/report/page.js"} <= set(names)


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["tasks", "analyses"])
def test_a_foreign_package_is_named_and_refused(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("")
    result = run_python(f"import interp; interp.{name}", tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: interp needs its own package `{name}`, but Python found another one at ")
    assert str(tmp_path / f"{name}.py") in last
    assert "rename that file" in last


def test_importing_interp_and_the_help_need_no_torch():
    code = (
        "import sys, interp, analyses.cli\n"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = run_python(code, ROOT)
    assert result.returncode == 0, result.stderr


def test_every_public_name_resolves():
    import interp

    for name in interp.__all__:
        assert getattr(interp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'scoreheads'"):
        _ = interp.scoreheads


def test_a_result_with_a_figure_shows_it_in_a_notebook():
    classes = [
        node
        for path in (ROOT / "interp").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    methods = {node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)} for node in classes}
    drawn = {name for name, own in methods.items() if "figure" in own}
    assert "HeadScores" in drawn
    assert {name for name in drawn if "_repr_html_" not in methods[name]} == set()
