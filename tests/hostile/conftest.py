"""Files that are broken or mean harm: each is refused in one line, with exit code 2.

Every file is made by the tests. While one is read, this process may take no more than 600 MB beyond
what it has, and nothing that a file asks for may be run.
"""

import resource
from pathlib import Path

import pytest

from graphcl import GraphCL
from tests.conftest import random_graph

ROOM = 600 * 2**20


@pytest.fixture
def bounded():
    """Lets this process take no more than `ROOM` beyond what it has."""
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "was-run").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    estimator = GraphCL("default", dim=8, epochs=1, feature_scaling="none", device="cpu")
    estimator.fit(random_graph()).save(folder / "run")
    return folder / "run"


@pytest.fixture
def model(trained, tmp_path):
    """A run of its own to break."""
    (tmp_path / "model").mkdir()
    for file in trained.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "model"
