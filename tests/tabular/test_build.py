import numpy as np
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.tabular.build import build_store, load_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write


def test_a_store_is_the_graph(tmp_path):
    write("e.csv", "source,target,w\nä b,c,2\nc,d,1\nd,d,1\n")
    write("n.csv", "id,f,topic,part\nc,1,x,train\nä b,2,y,val\nd,3,x,test\n")
    options = TableOptions(nodes="n.csv", weight="w", label="topic", split="part")
    graph, _ = load_tables("e.csv", options)
    steps = []
    build_store("e.csv", options, out=tmp_path / "store", on_step=steps.append)
    stored = Graph.open(tmp_path / "store", verify=True)
    for name in ("indptr", "indices", "x", "y", "train_mask", "test_mask", "edge_weight"):
        assert np.array_equal(getattr(stored, name), getattr(graph, name)), name
    assert stored.node_ids.tolist() == graph.node_ids.tolist() == ["c", "ä b", "d"]
    assert (stored.self_loops_removed, stored.name) == (1, "e")
    assert steps[0].startswith("guessed: ids in 'id' of n.csv; ends in 'source' and 'target'")
    assert steps[1] == "reading the edges"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv", "store"]


def test_sparse_features_go_to_a_store_sparse(tmp_path):
    write("e.csv", "source,target\n0,1\n1,2\n")
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(np.eye(3, 40, dtype=np.float32)))
    build_store("e.csv", TableOptions(nodes="x.npz"), out=tmp_path / "store")
    stored = Graph.open(tmp_path / "store", verify=True)
    assert np.array_equal(stored.x.toarray(), np.eye(3, 40))
