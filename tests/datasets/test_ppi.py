import json
import os
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data

from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.datasets.ppi import PREPARED_NOTE
from graphcl.errors import DatasetError, MissingExtraError
from graphcl.graphs.collection import GraphCollection

NODES, FEATURES, LABELS = 6, 50, 121


def small_ppi(seed=0):
    """Arrays of a prepared file with 24 graphs of six nodes; node 0 of each has a self-loop."""
    random = np.random.default_rng(seed)
    graph_id = np.repeat(np.arange(1, 25, dtype=np.uint8), NODES)
    features = random.integers(0, 2, (len(graph_id), FEATURES)).astype(np.uint8)
    features[graph_id <= 20, 10] = 0
    first = NODES * np.arange(24)
    edges = [(first, first), (first, first + 1), (first + 1, first + 5)]
    return {
        "features": features,
        "labels": random.integers(0, 2, (len(graph_id), LABELS)).astype(np.uint8),
        "edges": np.hstack([np.stack(pair) for pair in edges]).astype(np.int32),
        "graph_id": graph_id,
        "feature_names": np.array(["set"] * FEATURES),
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder and an empty cache."""
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data/ppi").mkdir(parents=True)
    return tmp_path


def write(folder, **changes):
    arrays = {key: value for key, value in (small_ppi() | changes).items() if value is not None}
    np.savez(folder / "data/ppi/ppi.npz", **arrays)


def test_the_prepared_file(folder):
    write(folder)
    collection = load_dataset("PPI")
    assert isinstance(collection, GraphCollection)
    assert (collection.name, collection.note) == ("ppi", PREPARED_NOTE)
    splits = (collection.train, collection.val, collection.test)
    assert [len(graphs) for graphs in splits] == [20, 2, 2]
    assert [graph.name for graph in collection.val] == ["ppi 21", "ppi 22"]
    assert collection.self_loops_removed == 24
    arrays = small_ppi()
    assert np.array_equal(collection.y, arrays["labels"])
    assert np.array_equal(collection.node_ids, np.arange(24 * NODES))
    for graph in collection.graphs:
        assert graph.edge_index().tolist() == [[0, 1, 1, 5], [1, 0, 5, 1]]


def test_features_are_z_scored_with_the_training_rows_alone(folder):
    write(folder)
    x = np.concatenate([graph.x for graph in load_dataset("ppi").graphs])
    raw = small_ppi()["features"].astype(float)
    train = slice(0, 20 * NODES)
    spread = raw[train].std(0)
    assert spread[10] == 0
    spread[10] = 1
    np.testing.assert_allclose(x, (raw - raw[train].mean(0)) / spread, atol=1e-6)
    np.testing.assert_allclose(x[train].mean(0), 0, atol=1e-6)
    changed = small_ppi()["features"]
    changed[20 * NODES :] = 1
    write(folder, features=changed)
    again = np.concatenate([graph.x for graph in load_dataset("ppi").graphs])
    assert np.array_equal(again[train], x[train])


def test_check_figures_of_the_prepared_file(data_folder):
    if not (data_folder / "ppi/ppi.npz").exists():
        pytest.skip(f"{data_folder} holds no ppi/ppi.npz")
    collection = load_dataset("ppi")
    assert collection.note == PREPARED_NOTE
    assert (len(collection.train), len(collection.val), len(collection.test)) == (20, 2, 2)
    assert collection.num_nodes == CATALOGUE["ppi"].nodes == 56944
    assert collection.split_nodes == (44906, 6514, 5524)
    assert collection.self_loops_removed == 25084
    assert collection.num_edges + 25084 == CATALOGUE["ppi"].edges == 818716
    assert (collection.num_features, collection.num_classes) == (50, 121)
    assert collection.y.sum() == 2105700
    x = np.concatenate([graph.x for graph in collection.graphs])
    train = x[:44906].astype(np.float64)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0), [1] * 10 + [0] + [1] * 39, atol=1e-5)
    # A row without any gene set is the same vector everywhere.
    _, counts = np.unique(x, axis=0, return_counts=True)
    assert counts.max() / len(x) == pytest.approx(0.425, abs=0.001)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "ppi.npz: has no array 'labels'"),
        ({"graph_id": np.ones(3, np.uint8)}, "features has shape"),
        ({"edges": np.array([[0], [NODES]])}, "an edge joins two graphs"),
        ({"edges": np.array([[0], [9999]])}, "edges name nodes beyond the 144 rows"),
        ({"labels": np.full((24 * NODES, LABELS), 2)}, "y: 2 at node 0"),
        ({"features": np.zeros((24 * NODES, 3), int)}, "3 features and 121 labels; expected 50"),
        ({"graph_id": np.repeat(np.arange(24), NODES)}, "ppi.npz: zero nodes"),
    ],
)
def test_damaged_files(folder, changes, message):
    write(folder, **changes)
    with pytest.raises(DatasetError) as caught:
        load_dataset("ppi")
    assert message in str(caught.value)


def test_files_that_are_not_npz(folder):
    path = folder / "data/ppi/ppi.npz"
    for content in (b"", b"text", b"PK\x03\x04 cut"):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"ppi\.npz: not a readable \.npz file"):
            load_dataset("ppi")


@pytest.fixture
def fetched(monkeypatch):
    """The official archive, already unpacked."""
    monkeypatch.setattr(sys.modules["graphcl.datasets.ppi"], "fetch_zip", lambda *_, **__: None)


class FakePPI:
    """PyG's class as far as it is used: a sequence of Data per split."""

    roots: ClassVar[list] = []

    def __init__(self, root, split):
        self.roots.append(root)
        self.ids = {"train": range(20), "val": range(20, 22), "test": range(22, 24)}[split]

    def __iter__(self):
        arrays = small_ppi()
        for number in self.ids:
            rows = slice(number * NODES, (number + 1) * NODES)
            yield Data(
                x=torch.tensor(arrays["features"][rows]).float(),
                y=torch.tensor(arrays["labels"][rows]).float(),
                edge_index=torch.tensor([[0, 0, 1], [0, 1, 0]]),
            )


def test_the_official_files_through_pyg(folder, fetched, monkeypatch):
    monkeypatch.setattr(torch_geometric.datasets, "PPI", FakePPI)
    monkeypatch.setattr(FakePPI, "roots", [])
    collection = load_dataset("ppi")
    assert set(FakePPI.roots) == {str(folder / "cache/graphcl/ppi")}
    assert (collection.name, collection.note) == ("ppi", "")
    assert [graph.name for graph in collection.test] == ["ppi 23", "ppi 24"]
    assert np.array_equal(collection.y, small_ppi()["labels"])
    assert collection.num_edges == 24
    assert np.array_equal(collection.train[1].x, small_ppi()["features"][NODES : 2 * NODES])


def test_the_prepared_file_goes_first_and_the_cache_may_hold_it(folder, monkeypatch):
    monkeypatch.setattr(torch_geometric.datasets, "PPI", None)
    write(folder)
    cache = folder / "cache/graphcl/ppi"
    cache.mkdir(parents=True)
    (folder / "data/ppi/ppi.npz").rename(cache / "ppi.npz")
    assert load_dataset("ppi").note == PREPARED_NOTE


def failing(error):
    def fail(*_args, **_keywords):
        raise error

    return fail


def test_the_data_is_nowhere(folder, monkeypatch):
    error = OSError("<urlopen error [Errno -2] Name or service not known>")
    monkeypatch.setattr(sys.modules["graphcl.datasets.ppi"], "fetch_zip", failing(error))
    with pytest.raises(DatasetError) as caught:
        load_dataset("ppi")
    text = str(caught.value)
    assert text.startswith(f"ppi: not in {folder}/data/ppi/ppi.npz and {folder}/cache/graphcl/ppi")
    assert "Name or service not known" in text
    assert "set GRAPHCL_DATA to a folder that contains ppi/ppi.npz" in text


def test_official_files_that_are_not_ppi(folder, fetched, monkeypatch):
    monkeypatch.setattr(FakePPI, "__iter__", lambda self: iter(()))
    monkeypatch.setattr(torch_geometric.datasets, "PPI", FakePPI)
    with pytest.raises(DatasetError, match=r"\(0, 0, 0\) train, validation and test graphs"):
        load_dataset("ppi")


def test_pyg_needs_networkx(folder, fetched, monkeypatch):
    monkeypatch.setattr(torch_geometric.datasets, "PPI", failing(ImportError("networkx")))
    with pytest.raises(MissingExtraError, match=r"graphcl\[networkx\]"):
        load_dataset("ppi")


def test_presence(folder):
    assert not CATALOGUE["ppi"].present
    processed = folder / "cache/graphcl/ppi/processed"
    processed.mkdir(parents=True)
    (processed / "train.pt").touch()
    assert CATALOGUE["ppi"].present
    assert sys.modules["graphcl.datasets.ppi"].PROCESSED in CATALOGUE["ppi"].files


def test_official_raw_files_are_read_by_pyg_itself(folder):
    """The real class on small files in the official format: nothing is downloaded."""
    raw = folder / "cache/graphcl/ppi/raw"
    raw.mkdir(parents=True)
    arrays = small_ppi()
    for split, ids in (("train", (1, 20)), ("valid", (21, 22)), ("test", (23, 24))):
        rows = (arrays["graph_id"] >= ids[0]) & (arrays["graph_id"] <= ids[1])
        first = int(np.flatnonzero(rows)[0])
        inside = rows[arrays["edges"][0]]
        links = arrays["edges"][:, inside] - first
        both = np.hstack([links, links[::-1]])
        document = {
            "directed": True,
            "multigraph": False,
            "graph": {},
            "nodes": [{"id": node} for node in range(int(rows.sum()))],
            "links": [{"source": int(u), "target": int(v)} for u, v in both.T],
        }
        (raw / f"{split}_graph.json").write_text(json.dumps(document))
        np.save(raw / f"{split}_feats.npy", arrays["features"][rows].astype(float))
        np.save(raw / f"{split}_labels.npy", arrays["labels"][rows].astype(float))
        np.save(raw / f"{split}_graph_id.npy", arrays["graph_id"][rows].astype(np.int64))
    official = load_dataset("ppi")
    write(folder)
    prepared = load_dataset("ppi")
    assert (official.note, prepared.note) == ("", PREPARED_NOTE)
    for ours, theirs in zip(prepared.graphs, official.graphs, strict=True):
        assert ours.name == theirs.name
        assert np.array_equal(ours.edge_index(), theirs.edge_index())
        assert np.array_equal(ours.y, theirs.y)
    x = np.concatenate([graph.x for graph in official.graphs])
    assert np.array_equal(x, arrays["features"])
    (folder / "data/ppi/ppi.npz").unlink()
    assert load_dataset("ppi").num_nodes == official.num_nodes  # from what PyG processed
    torch.save(Hostile(folder / "was-run"), folder / "cache/graphcl/ppi/processed/train.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as an error, PyG's warning would itself stop the fallback
        with pytest.raises(DatasetError, match=r"could not be loaded|expected"):
            load_dataset("ppi")
    assert not (folder / "was-run").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


class Hostile:
    """Runs something when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))
