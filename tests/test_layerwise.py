import numpy as np
import pytest
import torch

from graphcl.embedding import embed_graph
from graphcl.encoders.typed import TypedEncoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import prepare

CPU = torch.device("cpu")


def trained(sparse=False, **options):
    random = np.random.default_rng(0)
    x = (random.random((30, 40)) < 0.1).astype(float)
    import scipy.sparse

    table = scipy.sparse.csr_array(x) if sparse else x
    graph = Graph.from_edges(
        {"author": random.normal(size=(20, 3)), "paper": table, "topic": 5},
        {
            ("author", "writes", "paper"): {
                "edge_index": random.integers(0, (20, 30), (60, 2)).T,
                "edge_features": random.normal(size=(60, 2)),
            },
            ("paper", "cites", "paper"): {
                "edge_index": random.integers(0, 30, (2, 40)),
                "edge_weight": random.random(40) + 0.1,
            },
            ("paper", "on", "topic"): random.integers(0, (30, 5), (30, 2)).T,
        },
    )
    (prepared,) = prepare([graph], "auto")
    generator = torch.Generator().manual_seed(0)
    settings = {"dim": 12, "layers": 2, "normalisation": "layer"} | options
    return TypedEncoder(prepared.schema, generator=generator, **settings), prepared


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("block_rows", [1, 7, 1000])
def test_blocks_give_the_embeddings_of_the_whole_graph(sparse, beside, block_rows):
    options = {"side_by_side": True, "own_features": 0.4, "repeat_own": True} if beside else {}
    options |= {"smoothed_features": 0.2} if beside else {}
    encoder, prepared = trained(sparse, **options)
    for name in prepared.graph.nodes if beside else ():
        assert encoder.part(name).smoothed == 2
        encoder.part(name).calibrate(3 * torch.randn(50, 12, generator=torch.Generator()) + 1)
    with torch.no_grad():
        expected = encoder.embedding(*prepared.tensors(CPU))
    given = {"device": CPU, "feature_scaling": prepared.scaling, "block_rows": block_rows}
    done = []
    found = embed_graph(encoder, prepared.graph, **given, on_rows=lambda *rows: done.append(rows))
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=1e-4, atol=1e-6)
    assert done[-1][0] == done[-1][1]
    some = {"paper": np.array([7, 2, 7]), "topic": None}
    found = embed_graph(encoder, prepared.graph, **given, nodes=some)
    assert list(found) == ["paper", "topic"]
    np.testing.assert_allclose(found["paper"], expected["paper"][[7, 2, 7]], rtol=1e-4, atol=1e-6)


def test_only_the_neighbourhood_of_some_nodes_is_computed():
    encoder, prepared = trained()
    done = []
    embed_graph(
        encoder,
        prepared.graph,
        device=CPU,
        nodes={"author": np.array([0])},
        on_rows=lambda count, total: done.append(total),
    )
    assert done[0] < 3 * prepared.graph.num_nodes / 2
