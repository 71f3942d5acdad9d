"""`graphcl report` and `graphcl neighbors`, from a run to what a person sees."""

import json

import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.test_main import QUICK, arrays, fails, folder, trained  # noqa: F401

QUICK_MAP = ["--map", "pca"]


def test_report_writes_one_page(trained, capsys):  # noqa: F811
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


def test_a_report_without_its_graph_says_so(trained, folder, capsys):  # noqa: F811
    (folder / "mine.npz").unlink()
    assert run(["report", "runs/mine", *QUICK_MAP, "--out", "x.html"]) == 0
    assert "going on without the graph" in capsys.readouterr().err
    page = (folder / "x.html").read_text()
    assert "could not be read again: mine.npz: no such file" in page
    assert "Neighbour agreement" not in page
    assert "Confusion matrix" in page
    (trained / "nodes.npz").unlink()
    assert "keeps no node ids, and its graph is gone" in fails(
        capsys, "report", "runs/mine", *QUICK_MAP
    )


@pytest.mark.parametrize("keys", [("edge_index", "x"), ("edge_index", "x", "y")])
def test_a_report_without_labels_or_split(folder, capsys, arrays, keys):  # noqa: F811
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
        (["train", "mine.npz", "--out", "new", "--log", "wandb"], "--log must be tensorboard"),
    ],
)
def test_bad_input(trained, folder, capsys, arguments, message):  # noqa: F811
    (folder / "taken.html").touch()
    before = sorted(path.name for path in folder.rglob("*"))
    assert message in fails(capsys, *arguments)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_damaged_run_has_no_report(trained, capsys):  # noqa: F811
    (trained / "embeddings.npy").write_bytes(b"")
    assert "embeddings.npy: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    (trained / "embeddings.npy").unlink()
    assert "has no embeddings.npy" in fails(capsys, "neighbors", "runs/mine", "node 1")
    np.save(trained / "embeddings.npy", np.ones((7, 3), np.float32))
    assert "7 embeddings" in fails(capsys, "report", "runs/mine", *QUICK_MAP)
    assert "7 embeddings for 60 nodes" in fails(capsys, "neighbors", "runs/mine", "node 1")
    (trained / "result.json").write_text("{")
    assert "result.json: damaged" in fails(capsys, "report", "runs/mine", *QUICK_MAP)


def test_neighbors_are_those_of_brute_force_under_the_ids_that_came_in(trained, capsys):  # noqa: F811
    z = np.load(trained / "embeddings.npy")
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = unit @ unit[17]
    cosines[17] = -2
    assert run(["neighbors", "runs/mine", "node 17", "-k", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert "built an index of 60 nodes (there was none)" in captured.err
    told = json.loads(captured.out)
    assert told["id"] == "node 17"
    best = np.sort(cosines)[::-1][:5]
    np.testing.assert_allclose([n["cosine"] for n in told["neighbors"]], best, atol=2e-3)
    for entry in told["neighbors"]:
        row = int(entry["id"].removeprefix("node "))
        assert cosines[row] == pytest.approx(entry["cosine"], abs=2e-3)
        assert row != 17
    assert run(["neighbors", "runs/mine", "node 17", "-k", "100"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # the index was there
    assert len(captured.out.splitlines()) == 59


def test_awkward_ids(folder, capsys, arrays):  # noqa: F811
    ids = np.array(["-k", "a b", "Zoë", "", "</script>", "0", *(f"n{i}" for i in range(54))])
    np.savez("odd.npz", **arrays | {"node_ids": ids})
    assert run(["train", "odd.npz", *QUICK]) == 0
    for name in ("a b", "Zoë", "", "</script>", "0"):
        capsys.readouterr()
        assert run(["neighbors", "runs/odd", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == name
    assert run(["neighbors", "runs/odd", "--", "-k"]) == 0


def test_several_graphs_have_a_report(collection, tmp_path, recipe):
    from graphcl.estimator import GraphCL
    from graphcl.report.contents import gather
    from graphcl.report.page import render
    from graphcl.runs import files as runs
    from graphcl.runs.describe import describe_nodes
    from graphcl.runs.nodes import write_nodes

    model = GraphCL(recipe, device="cpu")
    z = np.concatenate(model.fit_transform(collection))
    with runs.new_run(tmp_path / "run") as made:
        model.write_to(made, graph="tissues")
        np.save(made / runs.EMBEDDINGS, z)
        write_nodes(made, describe_nodes(collection))
    contents = gather(tmp_path / "run", collection, method="pca")
    assert len(contents.nodes) == collection.num_nodes
    assert np.bincount(contents.nodes.split, minlength=4).tolist() == [0, *collection.split_nodes]
    assert contents.agreement.nodes <= collection.num_nodes
    assert contents.alignment > 0
    assert "Split" in render(contents)


def test_tensorboard_curves_end_up_in_the_run(folder, capsys):  # noqa: F811
    assert run(["train", "mine.npz", *QUICK, "--log", "tensorboard"]) == 0
    assert "tensorboard --logdir" in capsys.readouterr().err
    assert len(list((folder / "runs/mine/tensorboard").iterdir())) == 1
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    wild = ["--set", "learning_rate=1e30", "--log", "tensorboard", "--overwrite"]
    assert run(["train", "mine.npz", *QUICK, *wild]) == 2
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
