"""Embeddings that hold smoothed features are the same by every way to compute them.

What they are compared with is the encoder on the whole graph at once. Over several parts they are
in `tests/partitioned/test_inference.py`; in files of ONNX and torch, in
`tests/exporting/test_program.py`.
"""

import numpy as np
import pyarrow
import pytest
import scipy.sparse
import torch

from graphcl import GraphCL, Run
from graphcl.embedding import embed_graph
from graphcl.exporting.program import GraphProgram
from graphcl.graphs.graph import Graph
from tests.conftest import configured
from tests.estimator.test_typed import library
from tests.exporting.test_program import tensors_of

CPU = torch.device("cpu")
NODES, WIDTH, SMOOTHED = 90, 12, 5
NEAR, WEIGHTS = [3, 40, 77], [0.5, 1.5, 3.0]  # of a node that joins
SETTINGS = {"dim": 40, "epochs": 2, "batch_nodes": 32}


def graph_of(kind, *, grown):
    """A graph of a kind; grown, it has one more node, the last."""
    random = np.random.default_rng(0)
    x = random.normal(size=(NODES + 1, WIDTH)).astype(np.float32)
    edges = random.integers(0, NODES, (2, 200))
    edges = np.unique(np.sort(edges[:, edges[0] != edges[1]], axis=0), axis=1)
    weight = random.uniform(0.2, 4, edges.shape[1])
    if kind == "sparse":
        x = np.maximum(x, 0)
    if grown:
        edges = np.concatenate([edges, [NEAR, [NODES] * len(NEAR)]], axis=1)
        weight = np.concatenate([weight, WEIGHTS])
    x = x[: NODES + grown]
    table = scipy.sparse.csr_array(x) if kind == "sparse" else x
    return Graph.from_edge_index(edges, table, edge_weight=weight if kind == "weighted" else None)


def whole(model, graph):
    """The encoder on the whole graph, without blocks."""
    fitted = model._fitted
    prepared = fitted.prepare(graph)
    with torch.no_grad():
        z = fitted.encoder.eval().embedding(*prepared.tensors(CPU))
    return {name: rows.numpy() for name, rows in (z if isinstance(z, dict) else {"": z}).items()}


def close(found, expected):
    assert np.abs(expected[:, -SMOOTHED:]).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module", params=["dense", "sparse", "weighted", "one layer"])
def trained(request, tmp_path_factory):
    """A model, the kind of its graph, and its run."""
    layers = 1 if request.param == "one layer" else 2
    graph = graph_of(request.param, grown=False)
    model = configured(**SETTINGS, layers=layers, device="cpu").fit(graph)
    assert model.encoder_.beside.smoothed == SMOOTHED
    path = tmp_path_factory.mktemp(request.param.replace(" ", "-")) / "run"
    model.save(path, graph=graph)
    return model, request.param, path


def test_blocks_rows_files_and_models_that_are_read_again(trained, tmp_path):
    model, kind, path = trained
    graph = graph_of(kind, grown=False)
    (expected,) = whole(model, graph).values()
    close(model.transform(graph), expected)
    about = {"device": CPU, "feature_scaling": model._fitted.scaling}
    for options in ({"block_rows": 7}, {"out": tmp_path / "z.npy"}):
        close(embed_graph(model.encoder_, graph, **about, **options)["node"], expected)
    rows = np.array([70, 3, 3, 12])
    close(model.transform(graph, rows=rows), expected[rows])
    np.testing.assert_array_equal(model.transform(graph, rows=rows), model.transform(graph)[rows])
    close(Run(path).embeddings, expected)
    again = GraphCL.load(path, device="cpu")
    np.testing.assert_array_equal(again.transform(graph), model.transform(graph))


def test_a_node_that_joins(trained):
    model, kind, path = trained
    grown = graph_of(kind, grown=True)
    (expected,) = whole(model, grown).values()
    features = grown.x[[NODES]].toarray()[0] if kind == "sparse" else grown.x[NODES]
    weights = {"weights": WEIGHTS} if kind == "weighted" else {}
    graph = graph_of(kind, grown=False)
    new = model.embed_new(features, NEAR, graph=graph, **weights)
    close(new[None], expected[NODES:])
    nodes = {"id": [NODES]} | {f"f{k}": [float(value)] for k, value in enumerate(features)}
    edges = {"source": [NODES] * len(NEAR), "target": NEAR}
    edges |= {"weight": WEIGHTS} if weights else {}
    run = Run(path, graph=graph, device="cpu")
    run.update(
        nodes=pyarrow.table(nodes),
        edges=pyarrow.table(edges),
        **({"weight": "weight"} if weights else {}),
    )
    close(Run(path).embeddings, expected)


def test_a_program(trained):
    model, kind, _ = trained
    graph = graph_of(kind, grown=True)
    (expected,) = whole(model, graph).values()
    if kind == "sparse":  # a program takes the same table dense
        graph = graph.replace(x=graph.x.toarray())
    with torch.no_grad():
        close(GraphProgram(model._fitted)(*tensors_of(graph)).numpy(), expected)


def test_graphs_with_types(tmp_path):
    graph = library()
    model = configured(**SETTINGS, device="cpu").fit(graph)
    model.save(tmp_path / "run", graph=graph)
    expected, run = whole(model, graph), Run(tmp_path / "run").embeddings
    again = GraphCL.load(tmp_path / "run", device="cpu").transform(graph)
    about = {"device": CPU, "feature_scaling": model._fitted.scaling, "block_rows": 7}
    blocks = embed_graph(model.encoder_, model._fitted.prepare(graph).graph, **about)
    for name, rows in expected.items():
        assert model.encoder_.part(name).smoothed == SMOOTHED
        for found in (model.transform(graph), blocks, again, run):
            close(found[name], rows)
