import numpy as np
import pytest

from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.errors import DatasetError
from tests.files.test_npz import NPZ
from tests.forging import Hostile, described, npy, refused, zipped

pytestmark = pytest.mark.usefixtures("nothing_runs")


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "nonzeros", "classes", "isolated", "empty", "train"),
    [
        ("cora", 2708, 5278, 1433, 49216, 7, 0, 0, 140),
        ("citeseer", 3327, 4552, 3703, 105165, 6, 48, 15, 120),
        ("pubmed", 19717, 44324, 500, 988031, 3, 0, 0, 60),
    ],
)
def test_check_figures(name, nodes, edges, features, nonzeros, classes, isolated, empty, train):
    graph = load_dataset(name)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (nodes, edges, features)
    assert (graph.x.nnz, graph.num_classes) == (nonzeros, classes)
    assert (np.diff(graph.indptr) == 0).sum() == isolated
    assert (np.diff(graph.x.indptr) == 0).sum() == empty
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [mask.sum() for mask in masks] == [train, 500, 1000]
    assert (sum(mask.astype(int) for mask in masks) <= 1).all()
    assert (np.bincount(graph.y[graph.train_mask]) == 20).all()
    assert (graph.y[sum(masks) > 0] >= 0).all()


def test_citeseers_gaps_are_unlabelled_nodes_without_features():
    graph = load_dataset("citeseer")
    assert np.array_equal(graph.y == -1, np.diff(graph.x.indptr) == 0)


def test_unknown_and_absent_datasets():
    with pytest.raises(DatasetError, match=r"known: cora, .*did you mean 'citeseer'"):
        load_dataset("citeser")
    with pytest.raises(DatasetError, match="unknown dataset None; known: cora, "):
        load_dataset(None)
    with pytest.raises(DatasetError):
        load_dataset("reddit")


def test_presence_follows_graphcl_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not CATALOGUE["ppi"].present
    (tmp_path / "ppi").mkdir()
    (tmp_path / "ppi/ppi.npz").touch()
    assert CATALOGUE["ppi"].present
    assert CATALOGUE["cora"].present


@pytest.mark.parametrize("dataset", ["ppi/ppi.npz", "reddit/reddit_data.npz"])
@pytest.mark.parametrize(
    "case", ["bomb", "pickled array", "path upwards", "absurd shape", "a pipe"]
)
def test_datasets(case, dataset, tmp_path, capsys, monkeypatch, bounded):
    make, message = NPZ[case]
    (tmp_path / dataset).parent.mkdir()
    make(tmp_path / dataset)
    if case in ("pickled array", "absurd shape"):  # under the names that are looked for
        name = "features" if "ppi" in dataset else "feature"
        array = np.array([Hostile()], dtype=object)
        if case == "pickled array":
            np.savez(tmp_path / dataset, **{name: array})
        else:
            zipped(tmp_path / dataset, **{name: npy(header=described("<f4", (10**12, 64)))})
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    refused(["train", dataset.split("/")[0], "--out", "run"], capsys, message)
