import json
import sys

import numpy as np
import scipy.sparse

from benchmarks import scaling
from tests.conftest import random_graph


def test_every_scaling_gets_a_row(tmp_path, monkeypatch, graph, capsys):
    (tmp_path / "graphs").mkdir()
    np.savez(tmp_path / "graphs/mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    out = tmp_path / "rows.jsonl"
    quick = ["--runs", "1", "--dim", "8", "--epochs", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["scaling", "--out", str(out), *quick])
    scaling.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["system"] for row in rows] == ["none", "row", "auto", "standardise"]
    assert [row["settings"]["feature_scaling"] for row in rows] == ["none", "row", "auto", "none"]
    assert "mine {" in capsys.readouterr().out


def test_columns_are_standardised_and_sparse_ones_stay_sparse():
    graph = random_graph()
    dense = scaling.standardised(graph).x
    np.testing.assert_allclose(dense.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(dense.std(0), 1, rtol=1e-5)
    sparse = graph.replace(x=scipy.sparse.csr_array(np.maximum(graph.x, 0)))
    found = scaling.standardised(sparse).x
    assert scipy.sparse.issparse(found)
    assert found.nnz == sparse.x.nnz
    np.testing.assert_allclose(found.toarray().std(0), 1, rtol=1e-5)
