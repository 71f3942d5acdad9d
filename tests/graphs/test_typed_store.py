import json

import numpy as np
import pytest
import scipy.sparse

from graphcl.errors import StoreError
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_store import is_typed_store

WRITES, KNOWS = ("author", "writes", "paper"), ("author", "knows", "author")


def graph():
    random = np.random.default_rng(0)
    return Graph.from_edges(
        {
            "author": {"x": random.normal(size=(5, 2)), "node_ids": list("äbcde")},
            "paper": {
                "x": scipy.sparse.csr_array(np.eye(4)),
                "y": [0, 1, -1, 1],
                "train_mask": [0, 1],
                "val_mask": [3],
                "test_mask": [2],
                "class_names": ["no", "yes"],
            },
            "topic": 3,
        },
        {
            WRITES: {"edge_index": [[0, 1, 4], [3, 3, 0]], "edge_features": random.normal(size=3)},
            KNOWS: {"edge_index": [[0, 1], [1, 2]], "undirected": True, "edge_weight": [1.0, 2.0]},
            ("paper", "on", "topic"): np.zeros((2, 0), int),
        },
        name="library",
    )


def test_there_and_back(tmp_path):
    before = graph()
    before.save(tmp_path / "store")
    assert is_typed_store(tmp_path / "store")
    after = Graph.open(tmp_path / "store")
    assert repr(after) == repr(before)
    for name, one in before.nodes.items():
        other = after.nodes[name]
        for field in ("y", "train_mask", "val_mask", "test_mask", "node_ids"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        assert one.class_names == other.class_names
        assert (one.x is None) == (other.x is None)
    assert np.array_equal(before.nodes["author"].x, after.nodes["author"].x)
    assert isinstance(after.nodes["author"].x, np.memmap)
    assert (before.nodes["paper"].x != after.nodes["paper"].x).nnz == 0
    for key, one in before.relations.items():
        for field in ("indptr", "indices", "edge_weight", "edge_features", "edge_ids"):
            assert np.array_equal(getattr(one, field), getattr(after.relations[key], field)), field
    with pytest.raises(StoreError, match="already holds a store"):
        before.save(tmp_path / "store")
    before.save(tmp_path / "store", overwrite=True)


def test_what_is_damaged_is_refused(tmp_path):
    path = tmp_path / "store"
    with pytest.raises(StoreError, match="no such store"):
        Graph.open(path)
    graph().save(path)
    header = path / "typed.json"
    whole = header.read_text()
    for broken in ("{", "[]", '{"format": 2}', whole.replace('"indptr"', '"../x"')):
        header.write_text(broken)
        with pytest.raises(StoreError, match=r"typed.json"):
            Graph.open(path)
    about = json.loads(whole)
    about["relations"][0]["key"][0] = "journal"
    header.write_text(json.dumps(about))
    with pytest.raises(StoreError, match="relation-0: its types or arrays are missing"):
        Graph.open(path)
    header.write_text(whole)
    for name, array in (
        ("indices", np.array([0, 1, 9])),
        ("indices", np.array([0, -1, 1])),
        ("indptr", np.array([0, 2, 1, 3, 3])),
        ("indptr", np.array([0, 3])),
        ("edge_features", np.zeros((2, 1), np.float32)),
    ):
        file = path / "relation-0" / f"{name}.npy"
        kept = file.read_bytes()
        np.save(file, array)
        with pytest.raises(StoreError, match="relation-0: damaged"):
            Graph.open(path)
        file.write_bytes(kept)
    (path / "relation-1" / "edge_ids.npy").unlink()
    with pytest.raises(StoreError, match="missing"):
        Graph.open(path)
