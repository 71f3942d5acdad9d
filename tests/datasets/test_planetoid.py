import runpy

import numpy as np
import pytest

from graphcl.datasets import load_dataset


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


def test_the_build_script_reproduces_the_bundled_files(data_folder, tmp_path, monkeypatch):
    script = runpy.run_path("scripts/build_planetoid.py")
    bundled = script["BUNDLED"]
    monkeypatch.setitem(script["build"].__globals__, "BUNDLED", tmp_path)
    for name in ("cora", "citeseer", "pubmed"):
        written = script["build"](name, data_folder / "planetoid")
        with np.load(written) as ours, np.load(bundled / f"{name}.npz") as theirs:
            assert ours.files == theirs.files
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours.files)
