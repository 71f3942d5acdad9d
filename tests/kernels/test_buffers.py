"""A CUDA out-of-memory error is followed by one more try in smaller blocks, with a message."""

from importlib import import_module

import pytest
import torch

from graphcl.embedding import embed_graph
from graphcl.encoders import build_encoder
from graphcl.kernels import buffers
from tests.conftest import random_graph

LOSS = import_module("graphcl.losses.nt_xent")


@pytest.fixture(autouse=True)
def usual_blocks(monkeypatch):
    monkeypatch.setattr(buffers, "_divisor", 1)


class Failing:
    """Raises the first times it is called, then does its work."""

    def __init__(self, times, work=lambda *_, **__: "done"):
        self.times, self.work, self.heights = times, work, []

    def __call__(self, *arguments, **keywords):
        self.heights.append(buffers.block_height(64))
        if len(self.heights) <= self.times:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.work(*arguments, **keywords)


def test_a_step_is_repeated_once_in_smaller_blocks(capsys):
    work = Failing(1)
    assert buffers.retry_smaller(work) == "done"
    assert work.heights == [64, 8]
    assert "out of GPU memory; using blocks 8 times smaller from now on" in capsys.readouterr().err
    assert buffers.block_height(3) == 1


def test_a_second_failure_is_raised():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        buffers.retry_smaller(Failing(2))
    with pytest.raises(torch.cuda.OutOfMemoryError):  # and never a third try
        buffers.retry_smaller(Failing(1))


def test_other_errors_are_not_retried():
    def fail():
        raise RuntimeError("another")

    with pytest.raises(RuntimeError, match="another"):
        buffers.retry_smaller(fail)
    assert buffers.block_height(64) == 64


def trained(recipe):
    from graphcl import GraphCL

    return GraphCL(recipe, device="cpu", seed=3).fit(random_graph()).encoder_.state_dict()


def test_training_goes_on_with_the_same_bits(recipe, monkeypatch, capsys):
    expected = trained(recipe)
    loss = Failing(1, LOSS.nt_xent)
    monkeypatch.setattr(LOSS, "nt_xent", loss)
    again = trained(recipe)
    assert "out of GPU memory" in capsys.readouterr().err
    assert len(loss.heights) == recipe.epochs + 1
    for name, weight in expected.items():
        assert torch.equal(weight, again[name])


def test_embedding_goes_on(graph, monkeypatch, capsys):
    encoder = build_encoder("mean", 12, dim=8, layers=2, generator=torch.Generator().manual_seed(0))
    cpu = torch.device("cpu")
    expected = embed_graph(encoder, graph, device=cpu)["node"]
    import graphcl.layerwise as module

    work = Failing(1, module.mean_of_neighbourhoods)
    monkeypatch.setattr(module, "mean_of_neighbourhoods", work)
    assert (embed_graph(encoder, graph, device=cpu, block_rows=64)["node"] == expected).all()
    assert work.heights[:2] == [64, 8]
    assert len(work.heights) == 1 + 2 * 8
    assert "out of GPU memory" in capsys.readouterr().err


def test_the_command_line_says_what_to_do(monkeypatch, capsys, tmp_path):
    from graphcl.cli.main import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LOSS, "nt_xent", Failing(9))
    assert run(["train", "cora", "--set", "dim=8", "--set", "epochs=1"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("graphcl: out of GPU memory; try --set mode=sampled")


def test_the_fused_loss_takes_smaller_blocks(monkeypatch):
    fused = pytest.importorskip("graphcl.kernels.nt_xent_triton")
    rows, tile = 2 * fused._SMALL_BLOCK, fused._TILES["bf16"]
    assert len(fused._blocks(rows, rows, tile)) == 2
    monkeypatch.setattr(buffers, "_divisor", buffers.SMALLER)
    assert len(fused._blocks(rows, rows, tile)) >= 2 * buffers.SMALLER
