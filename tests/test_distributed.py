"""1 to 4 processes on the loopback, by gloo: the same loss, gradients, batches and weights."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.distributed as dist

from graphcl.distributed import (
    ALONE,
    Share,
    any_of,
    beside,
    choose_backends,
    current_share,
    data_parallel,
    fill_rows,
    from_rank,
    gather_parts,
    sum_gradients,
)
from graphcl.embedding import embed_graph
from graphcl.estimator.model import GraphCL
from graphcl.graphs.tensors import prepare
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.losses import nt_xent
from graphcl.losses.nt_xent import nt_xent_across
from graphcl.recipes import load_recipe
from graphcl.training import Checkpoints, FullGraph
from graphcl.training.checkpoints import StoppedError
from tests.conftest import random_collection, random_graph
from tests.groups import in_processes
from tests.kernels.test_adjacency_rows import both, with_weights

WORLDS = (1, 2, 3, 4)
NODES, DIM = 41, 6  # 41 rows: shares of two sizes
TEMPERATURES = (0.5, 0.001)  # the second is too small for bounded exponents


def sparse_graph():
    graph = random_graph(2)
    return graph.replace(x=scipy.sparse.csr_array(np.maximum(graph.x, 0)))


def weighted_graph():
    return with_weights(random_graph(1))


def unscaled_graph():
    graph = random_graph(3)
    units = np.where(np.arange(graph.num_features) % 2, 1000.0, 0.01)
    return graph.replace(x=(np.exp(graph.x) * units).astype(np.float32))


RESIDUAL = {"encoder": "residual", "layers": 3}
PLAIN = {
    "encoder": "mean",
    "normalisation": "none",
    "side_by_side": False,
    "own_features": 0.0,
    "smoothed_features": 0.0,
}
BESIDE = {key: getattr(load_recipe("default"), key) for key in PLAIN}
MODES = {
    "whole": (random_graph, {}),
    "minibatches": (random_graph, {"batch_nodes": 16}),
    "narrow": (random_graph, {"dim": 8}),  # multiplied before it is pooled
    "residual": (random_graph, RESIDUAL),
    "sparse": (sparse_graph, {"feature_scaling": "row"}),
    "sparse minibatches": (sparse_graph, {"batch_nodes": 25, **RESIDUAL}),
    "weighted": (weighted_graph, {}),
    "weighted minibatches": (weighted_graph, {"batch_nodes": 25, **RESIDUAL}),
    "several": (random_collection, {}),
    "several in minibatches": (random_collection, {"batch_nodes": 20, **RESIDUAL}),
    "repeated": (random_graph, {"encoder": "gcn"}),  # states no layers: every process encodes all
    "auto": (unscaled_graph, {"feature_scaling": "auto"}),
    "beside": (random_graph, BESIDE),
    "sampled beside": (random_graph, {**BESIDE, "mode": "sampled", "batch_nodes": 16}),
    "sampled": (random_graph, {"mode": "sampled", "batch_nodes": 16, "fan_out": 3}),
}


def embeddings(dtype):
    h = torch.randn(2, NODES, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h[0, 3] = 0  # a row without a direction
    return h.to(dtype)


def recipe_of(**changes):
    settings = {"dim": 16, "epochs": 2, "feature_scaling": "none", "learning_rate": 0.01}
    return load_recipe("default").replace(**PLAIN | settings | changes)


def loss_and_gradient(dtype, temperature, share):
    """Returns the loss, and the gradient of this process's rows."""
    h = embeddings(dtype)[:, share.rows(NODES)].requires_grad_()
    loss = nt_xent_across(*h, temperature, num_nodes=NODES, share=share)
    loss.backward()
    return loss.detach(), h.grad.transpose(0, 1).contiguous()


def pooled_and_gradient(share):
    """Returns own rows of a mean over neighbours, and of its gradient, in both copies."""
    graph = weighted_graph()
    h, weight = torch.randn(2, 2 * graph.num_nodes, 5, generator=torch.Generator().manual_seed(0))
    if share.world == 1:
        csr = (graph.indptr, graph.indices, graph.edge_weight)
        adjacency, rows = Adjacency.from_csr(*csr, device=torch.device("cpu")).twice(), slice(None)
    else:
        part = FullGraph.of(*prepare([graph], "none"), device=torch.device("cpu"), divided=share)
        adjacency, rows = part.adjacency, part.division.own
    own = both(h, rows).requires_grad_()
    pooled = mean_pool(own, adjacency)
    (pooled * both(weight, rows)).sum().backward()
    halves = torch.cat([*pooled.detach().chunk(2), *own.grad.chunk(2)], dim=1)
    return torch.cat(gather_parts(halves, share))


def resumed(share, folder):
    """Returns the weights of a training that was stopped and goes on.

    Two and four processes go on from their own checkpoint, one and three from that of four.
    """
    make, changes = MODES["minibatches"]
    model = GraphCL(recipe_of(**changes), device="cpu")
    asked = iter([False] * 5 + [True])
    begun = folder / f"begun-by-{2 if share.world == 2 else 4}"
    if share.world in (2, 4):
        with pytest.raises(StoppedError, match="epoch 2, step 1"):
            model.fit(make(), checkpoints=Checkpoints(begun, stop=lambda: next(asked)))
    copied = folder / f"gone-on-by-{share.world}"
    if share.first:  # which alone looks at files
        shutil.copytree(begun, copied)
    return model.fit(make(), checkpoints=copied, resume=True).encoder_.state_dict()


def work(share, folder):
    """What every process computes; the parts that are split are put together again."""
    found = {"pooled": pooled_and_gradient(share)}
    for key, weight in resumed(share, folder).items():
        found[f"resumed/{key}"] = weight
    for dtype in (torch.float32, torch.float64):
        for temperature in TEMPERATURES:
            name = f"{dtype}/{temperature}"
            loss, gradient = loss_and_gradient(dtype, temperature, share)
            found[f"loss/{name}"] = loss.reshape(1)
            found[f"gradient/{name}"] = torch.cat(gather_parts(gradient, share)).reshape(NODES, -1)
    for name, (make, changes) in MODES.items():
        model = GraphCL(recipe_of(**changes), device="cpu").fit(make())
        for key, weight in model.encoder_.state_dict().items():
            found[f"weights/{name}/{key}"] = weight
        found[f"losses/{name}"] = torch.tensor([metrics.loss for metrics in model.history_])
    model.encoder_.eval()
    z = embed_graph(model.encoder_, random_graph(7, num_nodes=53), device=torch.device("cpu"))[
        "node"
    ]
    found["embeddings"] = torch.from_numpy(z)
    table = torch.zeros(7, 2)
    table[share.rows(7)] = share.rank + 1.0
    fill_rows(table, share)
    found["table"] = table
    said = from_rank(f"rank {share.rank}".encode(), share, rank=share.world - 1)
    found["said"] = torch.tensor(list(said))
    found["any"] = torch.tensor([any_of(share.rank == 1, share), any_of(False, share)])
    return {name: value.detach().numpy() for name, value in found.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    several = {world: in_processes(world, work, folder) for world in (4, 3, 2)}
    return several | {1: [work(ALONE, folder)]}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_those_of_one_process(found, world, temperature, dtype):
    h = embeddings(torch.float64).requires_grad_()
    loss = nt_xent(*h, temperature)
    loss.backward()
    gradient = h.grad.transpose(0, 1).reshape(NODES, -1).numpy()
    # Small temperatures make large gradients; in float32 they carry its rounding, as nt_xent's do.
    close = 1e-6 if dtype is torch.float64 or temperature == 0.5 else 1e-3
    for rank in found[world]:
        value = rank[f"loss/{dtype}/{temperature}"]
        assert value == pytest.approx(loss.item(), rel=close)
        scale = max(1.0, np.abs(gradient).max())
        ours = rank[f"gradient/{dtype}/{temperature}"]
        np.testing.assert_allclose(ours / scale, gradient / scale, atol=close, rtol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", WORLDS[1:])
def test_any_number_of_processes_trains_the_same_encoder(found, world, mode):
    """Equal to the order of sums in float32: batches, subgraphs and views are the same."""
    (alone,) = found[1]
    first, *others = found[world]
    keys = [key for key in alone if key.startswith((f"weights/{mode}/", f"losses/{mode}"))]
    assert len(keys) >= 3
    for key in keys:
        np.testing.assert_allclose(first[key], alone[key], rtol=1e-4, atol=1e-5)
        for other in others:
            np.testing.assert_array_equal(other[key], first[key])


@pytest.mark.parametrize("mode", [mode for mode in MODES if "sampled" not in mode])
@pytest.mark.parametrize("world", WORLDS[1:])
def test_losses_on_whole_graphs_are_those_of_one_process(found, world, mode):
    (alone,) = found[1]
    np.testing.assert_allclose(
        found[world][0][f"losses/{mode}"], alone[f"losses/{mode}"], rtol=1e-6
    )


@pytest.mark.parametrize("world", WORLDS[1:])
def test_pooling_in_parts_is_pooling_and_so_is_its_gradient(found, world):
    (alone,) = found[1]
    for rank in found[world]:
        np.testing.assert_allclose(rank["pooled"], alone["pooled"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_a_training_goes_on_with_any_number_of_processes(found, world):
    (alone,) = found[1]
    for rank in found[world]:
        for key in (key for key in rank if key.startswith("resumed/")):
            name = key.replace("resumed/", "weights/minibatches/")
            np.testing.assert_allclose(rank[key], alone[name], rtol=1e-4, atol=1e-5)
            if world in (2, 4):  # as many as began it: the same bits
                np.testing.assert_array_equal(rank[key], rank[name])


@pytest.mark.parametrize("world", WORLDS[1:])
def test_rows_of_embeddings_are_split_and_put_together(found, world):
    (alone,) = found[1]
    for rank in found[world]:
        np.testing.assert_allclose(rank["embeddings"], alone["embeddings"], rtol=1e-3, atol=1e-4)
        owners = [r + 1.0 for r in range(world) for _ in range(7)[Share(r, world).rows(7)]]
        assert rank["table"][:, 0].tolist() == owners
        assert bytes(rank["said"].tolist()).decode() == f"rank {world - 1}"
        assert rank["any"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["gpu-a", "gpu-b"], "cpu:gloo,cuda:nccl"),
        (["gpu-a", "gpu-a"], "gloo"),  # NCCL refuses them
        (["gpu-a", "cpu"], "gloo"),
        (["cpu", "cpu"], "gloo"),
    ],
)
def test_all_processes_choose_the_same_backends(places, expected):
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda rank: choose_backends(places[rank], store, rank, 2), range(2))
        assert list(found) == [expected] * 2


def test_shares_are_in_order_and_equal_to_within_a_row():
    for count in (0, 1, 7, 8, 41):
        for world in (1, 2, 3, 4, 9):
            parts = [range(count)[Share(rank, world).rows(count)] for rank in range(world)]
            assert [row for part in parts for row in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("world", "here", "gpus", "expected"),
    [(1, None, 1, 1), (4, None, 4, 1), (8, "4", 4, 1), (8, "4", 1, 4), (6, "3", 2, 2)],
)
def test_who_shares_the_memory_of_a_device(monkeypatch, world, here, gpus, expected):
    monkeypatch.setattr("graphcl.distributed.current_share", lambda: Share(0, world))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert beside(torch.device("cpu")) == int(here or world)
    assert beside(torch.device("cuda")) == expected


def test_a_single_process_has_no_others_to_ask():
    assert current_share() == ALONE
    assert any_of(True, ALONE)
    assert json.loads(from_rank(b"[1]", ALONE)) == [1]
    rows = torch.ones(3, 2)
    (own,) = gather_parts(rows, ALONE)
    torch.testing.assert_close(own, rows, rtol=0, atol=0)


class PartlyUsed(torch.nn.Module):
    """Three weights: one of all processes, one that rank 1 alone uses, one that nobody uses."""

    def __init__(self, start):
        super().__init__()
        self.all, self.one, self.nobodys = (
            torch.nn.Parameter(torch.full((2, 3), start)) for _ in range(3)
        )

    def forward(self, rank):
        used = (self.all * (rank + 1)).sum()
        return used + (self.one * 5).sum() if rank == 1 else used


def summed(share, folder):
    module = PartlyUsed(float(share.rank))
    parallel = data_parallel(module, share)
    for weight in module.parameters():
        assert (weight == 0).all()  # the first process's
    parallel(share.rank).backward()
    sum_gradients(parallel)
    assert (module.all.grad == 1 + 2 + 3).all()
    assert (module.one.grad == 5).all()
    assert module.nobodys.grad is None


def test_gradients_are_sums_and_what_nobody_used_has_none(tmp_path):
    in_processes(3, summed, tmp_path)


def test_one_process_sums_nothing():
    module = PartlyUsed(1.0)
    assert data_parallel(module, ALONE) is module
    module(0).backward()
    sum_gradients(module)
    assert (module.all.grad == 1).all()
