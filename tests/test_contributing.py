"""CONTRIBUTING.md, executed: each "Add a …" section as written, in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
STEP = re.compile(
    r"(?:(Create|Append to|Change|change) `([^`]+)`|Run):\n\n```(\w+)\n(.*?)```", flags=re.DOTALL
)
SECTIONS = dict(re.findall(r"^## (Add an? \w+)\n(.*?)(?=^## )", PAGE, flags=re.DOTALL | re.M))


def skipped(folder, names):
    """What is not copied. What numba compiled is: it is valid for files of the same time."""
    if Path(folder).name == "__pycache__":
        return [name for name in names if not name.endswith((".nbi", ".nbc"))]
    return [name for name in names if name == "results" or name.endswith(".egg-info")]


@pytest.fixture
def scratch(tmp_path):
    """A copy of what a contributor changes, and of what the tests read."""
    for name in ("src", "tests", "benchmarks", "scripts", "examples", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def changed(text, diff):
    """The text after a diff that has no line numbers: its old lines stand there exactly once."""
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "+", "-") for line in lines), diff
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert text.count(old) == 1, old
    return text.replace(old, new)


def carry_out(scratch, verb, name, language, body):
    path = scratch / (name or "")
    if verb == "Create":
        assert not path.exists()
        path.write_text(body)
    elif verb == "Append to":
        path.write_text(f"{path.read_text()}\n\n{body.strip()}\n")
    elif verb:
        assert language == "diff"
        path.write_text(changed(path.read_text(), body))
    else:
        for line in body.splitlines():
            run(scratch, shlex.split(line))


def run(scratch, command):
    python = [sys.executable, *(["-m", "graphcl"] if command[0] == "graphcl" else [])]
    assert command[0] in ("graphcl", "python")
    done = subprocess.run(
        [*python, *command[1:]],
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": str(scratch / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_works_as_written(scratch, section):
    steps = STEP.findall(SECTIONS[section])
    assert len(steps) == SECTIONS[section].count("```") // 2, "a block that is not a step"
    assert steps[-1][2] == "bash"
    for step in steps:
        carry_out(scratch, *step)
    lint = [sys.executable, "-m", "ruff"]
    for command in ([*lint, "check", "src", "tests"], [*lint, "format", "--check", "src", "tests"]):
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_there_are_three():
    assert list(SECTIONS) == ["Add an encoder", "Add a perturbation", "Add a baseline"]
