"""`graphcl report`, from a run to what a person sees."""

import json

import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import QUICK, fails

QUICK_MAP = ["--map", "pca"]


def test_report_writes_one_page(trained, capsys):
    assert run(["report", "runs/mine", *QUICK_MAP, "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["out"] == "runs/mine/report.html"
    assert told["nodes_on_map"] == 60
    page = (trained / "report.html").read_text()
    assert told["bytes"] == len(page.encode())
    score = json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    assert f"{100 * score:.1f} %" in page
    assert "Confusion matrix" in page
    assert run(["report", "runs/mine", *QUICK_MAP]) == 0  # its own file is replaced
    assert "60 nodes on the map" in capsys.readouterr().out
    assert (trained / "report.html").read_text() == page  # the same run, the same page


def test_a_report_without_its_graph_says_so(trained, folder, capsys):
    (folder / "mine.npz").unlink()
    assert run(["report", "runs/mine", *QUICK_MAP, "--out", "x.html"]) == 0
    assert "continuing without the graph" in capsys.readouterr().err
    page = (folder / "x.html").read_text()
    assert "could not be read again: mine.npz: no such file" in page
    assert "Neighbour agreement" not in page
    assert "Confusion matrix" in page
    (trained / "nodes.npz").unlink()
    assert "has no node ids, and its graph cannot be read" in fails(
        capsys, "report", "runs/mine", *QUICK_MAP
    )


@pytest.mark.parametrize("keys", [("edge_index", "x"), ("edge_index", "x", "y")])
def test_a_report_without_labels_or_split(folder, capsys, arrays, keys):
    np.savez("bare.npz", **{key: arrays[key] for key in keys})
    assert run(["train", "bare.npz", *QUICK]) == 0
    assert run(["report", "runs/bare", *QUICK_MAP]) == 0
    page = (folder / "runs/bare/report.html").read_text()
    assert ("There is no probe score" in page) == ("y" not in keys)
    assert ("Confusion matrix" in page) == ("y" in keys)
    for text in ("Alignment", "Uniformity", "Neighbour agreement", "Silhouette"):
        assert text in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "absent"], "absent: no such run"),
        (["report", "runs/mine", "--out", "x.txt"], "must end in .html"),
        (["report", "runs/mine", "--out", "nowhere/x.html"], "does not exist"),
        (["report", "runs/mine", "--out", "taken.html"], "already exists"),
        (["report", "runs/mine", "--map", "tsne"], "map must be umap or pca; got 'tsne'"),
        (["neighbors", "absent", "x"], "absent: no such run"),
        (["neighbors", "runs/mine", "node 6l"], "no node has the id 'node 6l'; did you mean 'node"),
        (["neighbors", "runs/mine", "§§§"], "no node has the id '§§§'; ids look like 'node 0'"),
        (["neighbors", "runs/mine", "node 3", "-k", "0"], "-k must be at least 1; got 0"),
        (["neighbors", "runs/mine"], "Missing argument"),
        (["train", "mine.npz", "--out", "new", "--log", "paper"], "--log must be tensorboard"),
    ],
)
def test_bad_input(trained, folder, capsys, arguments, message):
    (folder / "taken.html").touch()
    before = sorted(path.name for path in folder.rglob("*"))
    assert message in fails(capsys, *arguments)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_damaged_run_has_no_report(trained, capsys):
    (trained / "embeddings.npy").write_bytes(b"")
    assert "embeddings.npy: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    (trained / "embeddings.npy").unlink()
    assert "has no embeddings.npy" in fails(capsys, "neighbors", "runs/mine", "node 1")
    np.save(trained / "embeddings.npy", np.ones((7, 3), np.float32))
    assert "7 embeddings" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    assert "7 embeddings for 60 nodes" in fails(capsys, "neighbors", "runs/mine", "node 1")
    (trained / "result.json").write_text("{")
    assert "result.json: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
