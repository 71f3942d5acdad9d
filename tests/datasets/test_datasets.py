import re

import numpy as np
import pytest

from graphcl.datasets import CATALOGUE, gallery_files, graph_files, load_dataset, read_gallery_graph
from graphcl.errors import DatasetError
from tests.files.test_arrays import NPZ
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


ONE = re.compile(
    r"\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+)( sparse)? \| (\d+)(.*?) \| (\S+) \|"
)


def number(text):
    return int(text.replace(",", ""))


@pytest.fixture
def folder(data_folder):
    if not (data_folder / "graphs").is_dir():
        pytest.skip("GRAPHCL_DATA has no gallery")
    return data_folder / "graphs"


def test_every_graph_has_the_figures_of_its_table(folder):
    table = {found[0]: found[1:] for found in ONE.findall((folder / "README.md").read_text())}
    files = graph_files(folder)
    assert table.keys() == files.keys()
    assert len(files) == 22
    for name, (nodes, edges, features, sparse, classes, note, splits) in table.items():
        graph = read_gallery_graph(files[name])
        counts = (graph.num_nodes, graph.num_edges, graph.num_features)
        assert counts == (number(nodes), number(edges), number(features)), name
        assert isinstance(graph.x, np.ndarray) == (not sparse), name
        if "several" in note:
            assert graph.y.shape == (graph.num_nodes, number(classes)), name
        else:
            labelled = graph.y[graph.y >= 0]
            assert len(np.unique(labelled)) == number(classes), name
            given = re.search(r"([\d,]+) labelled", note)
            assert len(labelled) == (number(given[1]) if given else graph.num_nodes), name
        half = name == "acm_hgb"  # it has no validation nodes
        assert graph.num_splits == (0 if splits == "–" or half else int(splits)), name
        if half:
            assert graph.train_mask.any()
            assert graph.val_mask is None


def write(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    edges, x = np.array([[0, 1, 2], [1, 2, 3]], np.int8), np.ones((4, 2), np.uint8)
    np.savez(path, **{"edge_index": edges, "x": x, **arrays})


def test_a_dataset_is_found_by_its_files_name(tmp_path, monkeypatch):
    masks = {
        name: np.roll(np.eye(4, dtype=bool)[:, :2], shift, axis=0)
        for shift, name in enumerate(("train_mask", "val_mask", "test_mask"))
    }
    extras = {"node_type": np.zeros(4), "local_info": np.zeros((4, 3)), **masks}
    write(tmp_path / "graphs/tiny.npz", y=np.array([0, 1, -1, 0], np.int8), **extras)
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    graph = load_dataset("tiny")
    assert (graph.name, graph.num_edges, graph.num_splits) == ("tiny", 3, 2)
    assert graph.split(1).train_mask.tolist() == [False, True, False, False]
    assert list(gallery_files([tmp_path, tmp_path / "none"])) == ["tiny"]
    with pytest.raises(DatasetError, match=r"known: cora, .*, ppi; did you mean 'tiny'\?"):
        load_dataset("tinny")


def test_the_first_folder_wins(tmp_path):
    for folder in ("a", "b"):
        write(tmp_path / folder / "graphs/same.npz")
    found = gallery_files([tmp_path / "a", tmp_path / "b"])
    assert found == {"same": tmp_path / "a/graphs/same.npz"}


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match="holds no graph"):
        graph_files(tmp_path)
