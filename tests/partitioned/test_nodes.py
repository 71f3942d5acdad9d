"""The nodes of parts are those of the store, in the order of the parts."""

import numpy as np
import pytest

from graphcl.errors import RunError, StoreError
from graphcl.graphs.graph import Graph
from graphcl.partitioned.embeddings import open_shards
from graphcl.partitioned.nodes import check_same_build, read_parts_nodes
from graphcl.tabular.build import build_store
from tests.conftest import random_graph
from tests.partitioned.test_embeddings import make_shards


@pytest.mark.parametrize("text", [True, False])
def test_they_are_those_of_the_whole_graph(tmp_path, text):
    graph = random_graph()
    if text:
        names = np.array([f"n {row} é" for row in range(60)])
        graph = graph.replace(node_ids=names)
    graph.save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=3, order="hash")
    nodes, whole = (
        read_parts_nodes(tmp_path / "parts"),
        Graph.open(tmp_path / "parts", restored=False),
    )
    assert nodes.num_nodes == 60
    assert list(nodes.node_ids) == list(whole.node_ids)
    assert nodes.y.tolist() == whole.y.tolist()
    assert nodes.degree.tolist() == np.diff(whole.indptr).tolist()
    masks = (whole.train_mask, whole.val_mask, whole.test_mask)
    assert (
        nodes.split_codes.tolist()
        == sum(k * m.astype(int) for k, m in enumerate(masks, 1)).tolist()
    )


def test_a_bare_graph_and_one_that_is_not_there(tmp_path):
    Graph.from_edge_index([[0, 1], [1, 2]], np.eye(4)).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "parts", parts=2, order="as-is")
    nodes = read_parts_nodes(tmp_path / "parts")
    assert (nodes.node_ids, nodes.y, nodes.split_codes) == (None, None, None)
    assert nodes.degree.tolist() == [1, 2, 1, 0]
    with pytest.raises(StoreError, match="no such store"):
        read_parts_nodes(tmp_path / "none")
    shards = open_shards(make_shards(tmp_path / "z", np.eye(4, dtype=np.float32), [0, 4], ".npy"))
    with pytest.raises(RunError, match=r"embeddings of the build bbb.*; .*parts has the build"):
        check_same_build(shards, nodes)
