"""Reddit's loader on small files of the official format."""

import numpy as np
import pytest
import scipy.sparse

from graphcl.datasets.reddit import find_reddit, load_reddit
from graphcl.errors import DatasetError
from tests.conftest import random_graph


def write(folder, *, form="coo", extra=(), **changed):
    graph = random_graph(num_features=5)
    kinds = np.select([graph.train_mask, graph.val_mask, graph.test_mask], [1, 2, 3])
    data = {
        "feature": graph.x.astype(np.float64),
        "label": graph.y,
        "node_types": kinds,
        "node_ids": np.arange(graph.num_nodes),
    } | changed
    folder.mkdir(exist_ok=True)
    np.savez(folder / "reddit_data.npz", **{k: v for k, v in data.items() if v is not None})
    rows, columns = np.concatenate([graph.edge_index(), np.array(extra, int).reshape(2, -1)], 1)
    matrix = scipy.sparse.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(60, 60))
    scipy.sparse.save_npz(folder / "reddit_graph.npz", matrix.asformat(form))
    return graph


@pytest.mark.parametrize("form", ["coo", "csr"])
def test_the_official_files(tmp_path, form):
    expected = write(tmp_path / "reddit", form=form)
    graph = load_reddit(find_reddit([tmp_path / "elsewhere", tmp_path]))
    assert (graph.name, graph.num_nodes, graph.num_classes) == ("reddit", 60, 3)
    for field in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(graph, field), getattr(expected, field))
    assert graph.indices.dtype == np.int64
    assert graph.x.dtype == np.float32
    assert not graph.x.flags.writeable


def test_self_loops_duplicates_and_one_way_edges(tmp_path):
    expected = write(tmp_path)
    present = set(map(tuple, expected.edge_index().T.tolist()))
    u, v = next((0, v) for v in range(1, 60) if (0, v) not in present)
    write(tmp_path, extra=[(4, 4, u, u), (4, 4, v, v)])
    graph = load_reddit(tmp_path)
    assert graph.self_loops_removed == 2
    assert graph.num_edges == expected.num_edges + 1
    assert set(map(tuple, graph.edge_index().T.tolist())) == present | {(u, v), (v, u)}


def test_an_absent_file_says_where_it_belongs(tmp_path):
    with pytest.raises(DatasetError, match=r"reddit: not in .*reddit; put the official"):
        find_reddit([tmp_path])
    with pytest.raises(DatasetError, match=r"reddit_data.npz: no such file; put the official"):
        load_reddit(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": None}, "reddit_data.npz: has no array 'label'"),
        ({"node_types": np.zeros(60)}, "node_types must be 60 numbers 1"),
        ({"node_types": np.ones(7)}, "node_types must be 60 numbers"),
        ({"feature": np.full((60, 2), np.nan)}, ": x: nan at node 0, feature 0"),
        ({"label": np.zeros(9)}, ": y: 9 labels for 60 nodes"),
        ({"label": np.array([None] * 60)}, "holds pickled objects"),
    ],
)
def test_damaged_data(tmp_path, changed, message):
    write(tmp_path, **changed)
    with pytest.raises(DatasetError, match=message):
        load_reddit(tmp_path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"row": [0, 1]}, "has neither 'row' and 'col' nor"),
        ({"row": [0, 60], "col": [1, 2]}, "edge 1 names node 60, but the nodes are 0 to 59"),
        ({"row": [0, 1], "col": [-1, 2]}, "edge 0 names node -1"),
        ({"row": [0, 1], "col": [1]}, "2,\\) sources and \\(1,\\) targets"),
        ({"row": [0.5], "col": [1.0]}, "node numbers must be integers"),
    ],
)
def test_damaged_edges(tmp_path, parts, message):
    write(tmp_path)
    np.savez(tmp_path / "reddit_graph.npz", **{k: np.array(v) for k, v in parts.items()})
    with pytest.raises(DatasetError, match=message):
        load_reddit(tmp_path)


def test_a_truncated_file(tmp_path):
    write(tmp_path)
    path = tmp_path / "reddit_graph.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DatasetError, match=r"reddit_graph.npz: not a readable .npz file"):
        load_reddit(tmp_path)
