import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import QUICK, fails, said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": np.array([[1.0], [np.nan]]), "edge_index": [[0], [1]]},
            "x: nan at node 1, feature 0",
        ),
        ({"edge_index": [[0], [60]]}, "edge 0 names node 60, but the nodes are 0 to 59"),
        ({"x": np.zeros((0, 3)), "edge_index": np.zeros((2, 0), int)}, "zero nodes"),
        ({"y": np.zeros(59, int)}, "y: 59 labels for 60 nodes"),
        ({"x": np.array([{}], dtype=object)}, "holds pickled objects, which are never read"),
    ],
)
def test_bad_graph_files(folder, capsys, arrays, changes, message):
    if "x" in changes:
        arrays = {"edge_index": arrays["edge_index"]}
    np.savez("bad.npz", **arrays | changes)
    assert message in fails(capsys, "train", "bad.npz", *QUICK)
    assert not (folder / "runs").exists()


def test_truncated_and_foreign_graph_files(folder, capsys):
    whole = (folder / "mine.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a readable .npz" in fails(capsys, "train", "cut.npz")
    (folder / "empty.npz").touch()
    assert "not a readable .npz" in fails(capsys, "train", "empty.npz")
    np.save("single.npy", np.ones(3))
    (folder / "single.npy").rename(folder / "single.npz")
    assert "is a single array" in fails(capsys, "train", "single.npz")
    np.savez("few.npz", x=np.ones((2, 2)))
    assert "has no array 'edge_index'" in fails(capsys, "train", "few.npz")


def write(graph, shift=0.0):
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x + shift, y=graph.y)


def test_another_graph_of_the_same_name_is_noticed(folder, graph, capsys):
    train = ["train", "mine.npz", *QUICK, "--out", "run"]
    assert run(train) == 0
    assert run([*train, "--resume"]) == 0
    assert "run: already complete" in capsys.readouterr().err
    write(graph, shift=1.0)
    assert run([*train, "--resume"]) == 2
    assert "already holds a run" in said(capsys)
    assert run(["embed", "run", "--out", "z.npy"]) == 2
    assert said(capsys) == "graphcl: run: mine.npz is not the graph that the run was trained on"
    assert run(["embed", "run", "mine.npz", "--out", "z.npy"]) == 0  # by name: any graph
    (folder / "mine.npz").unlink()
    assert run(["evaluate", "run"]) == 2
    assert said(capsys).endswith("(the graph that run was trained on)")


def test_a_graph_of_the_gallery_is_taken_by_name_and_by_path(folder, arrays, capsys, monkeypatch):
    (folder / "graphs").mkdir()
    np.savez("graphs/wide.npz", **arrays, local_info=np.zeros((60, 2)))
    monkeypatch.setenv("GRAPHCL_DATA", str(folder))
    for number, name in enumerate(("wide", "graphs/wide.npz")):
        assert run(["train", name, *QUICK, "--out", f"run{number}"]) == 0
    capsys.readouterr()
    assert run(["evaluate", "run0"]) == 0
    capsys.readouterr()
    assert "did you mean 'wide'?" in fails(capsys, "train", "wyde")
    (folder / "graphs/wide.npz").rename("elsewhere.npz")
    assert run(["train", "elsewhere.npz", *QUICK, "--out", "run2"]) == 0
    assert "elsewhere.npz: not used: unknown array 'local_info'" in capsys.readouterr().err


def test_an_npz_with_types_is_a_typed_graph_and_by_name_a_plain_one(
    folder, arrays, capsys, monkeypatch
):
    edges = arrays["edge_index"].shape[1]
    extras = {"node_type": np.arange(60) % 2, "edge_type": np.zeros(edges, np.int8)}
    (folder / "graphs").mkdir()
    np.savez("graphs/kinds.npz", **arrays, **extras)
    monkeypatch.setenv("GRAPHCL_DATA", str(folder))
    assert run(["train", "graphs/kinds.npz", *QUICK, "--out", "typed"]) == 0
    assert len(list((folder / "typed/types").iterdir())) == 2
    assert run(["train", "kinds", *QUICK, "--out", "plain"]) == 0
    assert not (folder / "plain/types").exists()
    capsys.readouterr()
    np.savez("torn.npz", **arrays, **extras | {"edge_type": np.zeros(3, np.int8)})
    assert f"edge_type: expected a number or a text for each of {edges}" in fails(
        capsys, "train", "torn.npz"
    )
