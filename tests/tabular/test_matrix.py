from pathlib import Path

import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular.build import read_tables
from tests.conftest import FUZZ
from tests.tabular.conftest import edges_of, graph_or_one_line, write


def test_features_as_matrices():
    write("e.csv", "source,target\n0,1\n1,2\n")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save("x.npy", x)
    assert np.array_equal(read_tables("e.csv", "x.npy").x, x)
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(x))
    sparse = read_tables("e.csv", "x.npz").x
    assert np.array_equal(sparse.toarray(), x)
    write("n.csv", "source,target\nu,v\nv,w\n")
    np.savez("named.npz", x=x, node_ids=["w", "v", "u"], y=[0, 1, 0], train_mask=[0])
    graph = read_tables("n.csv", "named.npz")
    assert graph.node_ids.tolist() == ["w", "v", "u"]
    assert graph.y.tolist() == [0, 1, 0]
    assert np.flatnonzero(graph.train_mask).tolist() == [0]
    assert edges_of(graph) == {("u", "v"), ("v", "w")}
    both = read_tables("e.csv", "x.npz", features="both")
    assert both.x.shape == (3, 2 + len(FEATURE_NAMES))


@FUZZ
@given(st.data(), st.sampled_from(["npy", "npz"]))
def test_damaged_feature_matrices(data, kind):
    name = f"x.{kind}"
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    if kind == "npy":
        np.save(name, x)
    else:
        np.savez(name, x=x, node_ids=np.arange(4))
    content = bytearray(Path(name).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path(name).write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    Path("e.csv").write_text("source,target\n0,1\n")
    graph_or_one_line("e.csv", nodes=name)
