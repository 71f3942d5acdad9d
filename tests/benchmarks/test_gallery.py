import sys

import numpy as np
import pytest

from benchmarks import gallery
from graphcl.gallery.comparison import read_systems
from graphcl.trials import rows
from tests.conftest import random_graph


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gallery", *map(str, arguments)])
    gallery.main()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graphs").mkdir()
    for seed, name in enumerate(("first", "second")):
        graph = random_graph(seed)
        path = tmp_path / f"graphs/{name}.npz"
        np.savez(path, edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    return tmp_path


def test_rows_then_a_page_with_its_picture(folder, monkeypatch, capsys):
    out, docs = folder / "rows.jsonl", folder / "docs"
    monkeypatch.setenv("GRAPHCL_DATA", str(folder))
    systems = ["--systems", "raw", "random-encoder:dim=4"]
    call(monkeypatch, "--out", out, *systems, "--runs", "2", "--device", "cpu")
    assert "6 rows" in capsys.readouterr().out
    before = out.read_bytes()
    call(monkeypatch, "--out", out, *systems, "--runs", "2", "--device", "cpu")
    assert out.read_bytes() == before
    call(monkeypatch, "--page", "--out", out, "--docs", docs)
    page = (docs / "gallery.md").read_text()
    assert page.startswith("# Out of the box on many graphs\n")
    assert "![Score per graph and system](images/gallery.png)" in page
    assert "| Graph | Score | raw | random-encoder:dim=4 |" in page
    scores = [row["score"] for row in rows.read(out) if row["graph"] == "first"]
    assert f"{100 * scores[0]:.1f}" in page
    assert (docs / "images/gallery.png").read_bytes().startswith(b"\x89PNG")


def test_some_graphs_within_a_budget(folder, monkeypatch):
    out = folder / "rows.jsonl"
    given = ["--folder", folder / "graphs", "--graphs", "second", "--systems", "raw", "propagation"]
    call(monkeypatch, "--out", out, *given, "--budget", "0")
    assert [(row["graph"], row["system"]) for row in rows.read(out)] == [("second", "raw")]


def test_a_page_needs_rows(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="holds no rows"):
        call(monkeypatch, "--page", "--out", tmp_path / "none.jsonl", "--docs", tmp_path)


def test_the_systems_are_known():
    assert [system.name for system in read_systems(gallery.SYSTEMS)] == list(gallery.SYSTEMS)
