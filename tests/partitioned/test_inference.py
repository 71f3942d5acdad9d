"""Two and three processes, each with one part: their embeddings are those of the whole graph."""

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.distributed import ALONE
from graphcl.embedding import embed_graph
from graphcl.encoders import build_encoder
from graphcl.errors import StoreError
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import prepare
from graphcl.partitioned import boundary, inference
from graphcl.partitioned.boundary import Wire, open_own_part
from graphcl.partitioned.features import prepare_part_like
from graphcl.partitioned.inference import embed_part
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store
from tests.conftest import random_graph
from tests.groups import in_processes
from tests.kernels.test_adjacency_rows import with_weights

WORLDS = (2, 3)
NODES = 90


def sparse_graph():
    graph = random_graph(2, num_nodes=NODES)
    return graph.replace(x=scipy.sparse.csr_array(np.maximum(graph.x, 0)))


def dense_graph():
    return random_graph(1, num_nodes=NODES)


def weighted_graph():
    graph = with_weights(dense_graph())
    return graph.replace(y=None, train_mask=None, val_mask=None, test_mask=None)


def lonely_graph():
    """Most nodes have no edge, and some parts no boundary."""
    return Graph.from_edge_index([[0, 1], [1, 2]], dense_graph().x)


SIDE = {"side_by_side": True, "own_features": 0.2, "smoothed_features": 0.2}
# graph, how the store keeps features, scaling, order, encoder and its settings
CASES = {
    "mean": (dense_graph, "float32", "none", "neighbours", "mean", {}),
    "residual": (dense_graph, "float32", "none", "hash", "residual", {}),
    "row": (dense_graph, "float16", "row", "hash", "mean", {}),
    "auto": (dense_graph, "float16", "auto", "neighbours", "mean", {}),
    "sparse": (sparse_graph, "float32", "row", "hash", "residual", {}),
    "sparse beside": (sparse_graph, "float32", "none", "neighbours", "mean", SIDE),
    "weighted": (weighted_graph, "float32", "none", "hash", "residual", {}),
    "beside": (dense_graph, "float32", "none", "as-is", "residual", SIDE),
    "weighted beside": (weighted_graph, "float16", "unit", "hash", "mean", SIDE),
    "lonely": (lonely_graph, "float32", "none", "as-is", "mean", {}),
}


IN_FILES = ("residual", "auto", "sparse", "weighted", "beside")  # these use scratch files


def encoder_of(name, settings):
    generator = torch.Generator().manual_seed(3)
    return build_encoder(name, 12, dim=10, layers=3, generator=generator, **settings)


def embedded(folder, case, share, scratch=None):
    _, _, scaling, _, encoder, settings = CASES[case]
    part = open_own_part(folder / f"{case}-{share.world}", share)
    (whole,) = prepare([Graph.open(folder / case)], scaling)
    options = {"share": share, "scratch": scratch}
    options["slab_bytes"] = 3000 if share.rank == 0 else 1500  # some columns at a time
    prepared = prepare_part_like(part, whole.schema, whole.scaling, Wire(share))
    return embed_part(encoder_of(encoder, settings), prepared, **options)["node"]


def process(share, folder):
    with pytest.MonkeyPatch.context() as patch:  # other tests use this process after it
        patch.setattr(boundary, "ROUND_BYTES", 4096)  # several rounds
        patch.setattr(inference, "BLOCK_ROWS", 16)
        _embed_cases(share, folder)


def _embed_cases(share, folder):
    rank, world = share.rank, share.world
    for case in CASES:
        scratch = folder if case in IN_FILES else None
        np.save(folder / f"{case}-{world}-{rank}.npy", embedded(folder, case, share, scratch))
    try:
        open_own_part(folder / f"torn-{world}", share)
    except StoreError as error:
        (folder / f"said-{world}-{rank}").write_text(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for case, (make, features, _, order, _, _) in CASES.items():
        make().save(folder / case, features=features)
        for world in (1, *WORLDS):
            build_store(folder / case, out=folder / f"{case}-{world}", parts=world, order=order)
    for world in WORLDS:
        torn = folder / f"torn-{world}"
        build_store(folder / "mean", out=torn, parts=world, order="hash")
        (torn / f"part-0000{world - 1}/nodes-0/x.npy").unlink()
    for world in WORLDS:
        in_processes(world, process, folder)
    return folder


@pytest.mark.parametrize("world", [1, *WORLDS])
@pytest.mark.parametrize("case", CASES)
def test_shards_are_the_embeddings_of_the_whole_graph(folder, case, world):
    """Equal to the order of sums in float32."""
    _, _, scaling, _, encoder, settings = CASES[case]
    whole = Graph.open(folder / f"{case}-{world}", restored=False)
    scaling = prepare([Graph.open(folder / case)], scaling)[0].scaling
    cpu = torch.device("cpu")
    expected = embed_graph(
        encoder_of(encoder, settings), whole, device=cpu, feature_scaling=scaling
    )["node"]
    if world == 1:
        found = embedded(folder, case, ALONE, folder if case in IN_FILES else None)
    else:
        shards = [np.load(folder / f"{case}-{world}-{rank}.npy") for rank in range(world)]
        sizes = np.diff(read_store(folder / f"{case}-{world}").types["node"].starts)
        assert [len(shard) for shard in shards] == sizes.tolist()
        found = np.concatenate(shards)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_a_torn_part_ends_every_process_with_its_name(folder, world):
    said = {(folder / f"said-{world}-{rank}").read_text() for rank in range(world)}
    assert len(said) == 1
    assert f"part-0000{world - 1}/nodes-0/x.npy: cannot be read" in said.pop()
