"""A run whose graph comes from tables, which tests copy and update."""

import shutil

import numpy as np
import pytest

from graphcl.cli.main import run

NODES = 80


def rows():
    random = np.random.default_rng(0)
    ages, cities = random.integers(20, 60, NODES), random.choice(list("abc"), NODES)
    topics = np.where(np.arange(NODES) < NODES // 2, "left", "right")
    columns = (ages.tolist(), cities.tolist(), topics.tolist())
    return [(f"n{i}", *one) for i, one in enumerate(zip(*columns, strict=True))]


def edges():
    return [(f"n{i}", f"n{(i + step) % NODES}") for i in range(NODES) for step in (1, 3)]


def write(path, head, table):
    lines = [",".join(head), *(",".join(map(str, row)) for row in table)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def trained_on_tables(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write(place / "nodes.csv", ("id", "age", "city", "topic"), rows())
        write(place / "edges.csv", ("source", "target"), edges())
        words = ["train", "edges.csv", "--nodes", "nodes.csv", "--label", "topic", "--out", "run"]
        assert run([*words, "--set", "epochs=3", "--set", "dim=12", "--set", "layers=2"]) == 0
    return place


@pytest.fixture
def place(trained_on_tables, tmp_path, monkeypatch):
    """A folder with the tables and the run, to use or to break."""
    shutil.copytree(trained_on_tables, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"
