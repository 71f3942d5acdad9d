import numpy as np
import pytest

import graphcl
from graphcl.errors import GraphError, ParameterError, RunError
from graphcl.estimator import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.reporting.writing import report


@pytest.fixture
def model(graph):
    return GraphCL(dim=8, epochs=2, device="cpu").fit(graph)


def test_a_model_gets_the_page_that_a_run_would_get(model, graph, tmp_path):
    out = tmp_path / "page.html"
    assert graphcl.report(model, graph, out, layout="pca") == out
    page = out.read_text()
    for text in ("accuracy on test nodes", "Confusion matrix", "Alignment", "Loss (NT-Xent)"):
        assert text in page
    with pytest.raises(RunError, match="already exists"):
        report(model, graph, out, layout="pca")
    report(model, graph, out, layout="pca", overwrite=True)


def test_without_labels_and_from_a_run(model, graph, tmp_path):
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    page = report(model, bare, tmp_path / "a.html", layout="pca").read_text()
    assert "the graph has no labels" in page
    model.save(tmp_path / "run", graph=graph)
    page = report(tmp_path / "run", graph, tmp_path / "b.html", layout="pca").read_text()
    assert "Alignment" in page
    page = report(tmp_path / "run", out=tmp_path / "c.html", layout="pca").read_text()
    assert "no graph was passed to report" in page


def test_what_is_refused(model, graph, tmp_path):
    with pytest.raises(GraphError, match="a model needs the graph"):
        report(model, out=tmp_path / "a.html")
    with pytest.raises(ParameterError, match="layout must be umap or pca"):
        report(model, graph, tmp_path / "a.html", layout="tsne")
    with pytest.raises(RunError, match=r"must end in \.html"):
        report(model, graph, tmp_path / "a.pdf")
    wide = Graph.from_edge_index(graph.edge_index(), np.ones((60, 3)))
    with pytest.raises(GraphError, match="has 3 features"):
        report(model, wide, tmp_path / "a.html", layout="pca")
    assert not list(tmp_path.iterdir())


def test_a_typed_graph_has_a_page_for_a_type(tmp_path):
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    masks = {"train_mask": np.arange(16), "val_mask": np.arange(16, 24)}
    papers = {"x": random.normal(size=(40, 4)), "y": y, **masks, "test_mask": np.arange(24, 40)}
    typed = graphcl.Graph.from_edges(
        {"paper": papers, "author": random.normal(size=(20, 3))},
        {("author", "writes", "paper"): random.integers(0, 20, (2, 80))},
    )
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(typed)
    page = report(model, typed, tmp_path / "a.html", layout="pca").read_text()
    assert "the nodes of type &#x27;paper&#x27;" in page or "type 'paper'" in page
    page = report(model, typed, tmp_path / "b.html", layout="pca", node_type="author").read_text()
    assert "author" in page
    model.save(tmp_path / "run", graph=typed)
    report(tmp_path / "run", out=tmp_path / "c.html", layout="pca", node_type="author")
    with pytest.raises(GraphError, match="say which type"):
        report(tmp_path / "run", out=tmp_path / "d.html", layout="pca")
    assert not (tmp_path / "d.html").exists()
