"""One version everywhere, and what a release holds."""

import re
import subprocess
import tomllib
from pathlib import Path

import graphcl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_changelog_the_citation_and_the_package_have_one_version():
    version = PROJECT["version"]
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert heading
    assert heading[1] == version
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert cited
    assert cited[1] == version
    assert graphcl.__version__ == version


def test_the_script_that_tries_a_release_is_valid_and_asks_for_extras_that_exist():
    script = ROOT / "scripts/try_release.sh"
    subprocess.run(["bash", "-n", script], check=True)
    (extras,) = re.findall(r"\$wheel\[([a-z,]+)\]", script.read_text())
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
