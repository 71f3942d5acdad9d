"""The GPU kernels of NT-Xent against a dense float64 reference: loss and gradient.

On a GPU they run as compiled; elsewhere Triton's interpreter runs them on the CPU.
"""

import os
import sys

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from graphcl.distributed import Share
from graphcl.kernels import nt_xent_triton
from graphcl.kernels.nt_xent_triton import FusedPairs
from graphcl.losses.nt_xent import _Batch, _NTXent
from tests.losses.test_nt_xent import VIEWS, errors, exact, two_views

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
PRECISIONS = ["bf16", "tf32", "float32"]
SIZES = [(64, 64), (40, 193), (140, 96)]  # tables are padded to units of 64 columns
# Width and precision of shares. In bf16 one kernel is for narrow tables, of one or two units of
# width, and others for wide ones; other precisions have the latter alone.
SHARED = [(40, "bf16"), (100, "bf16"), (140, "bf16"), (100, "tf32"), (100, "float32")]
SHARES = [(41, 3, 0.1, *kind) for kind in SHARED] + [(41, 2, 0.01, *kind) for kind in SHARED[::2]]
SHARES += [(140, 2, 0.1, *kind) for kind in SHARED[1:3]]
if not INTERPRETED:
    SIZES = [(m, d) for m in (64, 1_000, 20_000) for d in (64, 513, 6_144)] + [(1_000, 96)]
    SHARED = [(d, precision) for d in (40, 100, 140) for precision in PRECISIONS]
    batches = ((140, 2, 0.1), (41, 3, 0.1), (41, 3, 0.01))
    SHARES = [(m, w, t, *kind) for m, w, t in batches for kind in SHARED]


def bound(precision: str, temperature: float) -> float:
    """Returns the largest relative error that is promised."""
    wide = 5e-3 if temperature >= 0.07 else 2e-2
    return {"bf16": wide, "tf32": wide / 10, "float32": 1e-5}[precision]


def fused(h1: Tensor, h2: Tensor, temperature: float, precision: str) -> tuple[Tensor, ...]:
    h1, h2 = (h.detach().clone().requires_grad_() for h in (h1, h2))
    loss = _NTXent.apply(h1, h2, temperature, precision, _Batch(len(h1)))
    return loss.detach(), *torch.autograd.grad(loss, (h1, h2))


def check(h1: Tensor, h2: Tensor, temperature: float, precision: str) -> None:
    found, expected = fused(h1, h2, temperature, precision), exact(h1, h2, temperature)
    assert max(errors(found, expected)) <= bound(precision, temperature)


def shared(
    h1: Tensor, h2: Tensor, temperature: float, precision: str, world: int
) -> tuple[Tensor, ...]:
    """The loss as `world` processes compute it, one after the other."""
    parts = [Share(rank, world).rows(len(h1)) for rank in range(world)]
    ranks = [FusedPairs(h1[part], h2[part], temperature, precision) for part in parts]
    losses = []
    for mine in ranks:
        mine.sum_own()
        for other in ranks:
            if other is not mine:
                assert tuple(other.travelling().shape) == mine.shape(other.nodes)
                mine.sum_other(other.travelling(), other.nodes)
        losses.append(mine.finish_sums().sum() / len(h1))
    largest = torch.stack([mine.peak() for mine in ranks]).max()
    gradients = []
    for mine, part in zip(ranks, parts, strict=True):
        mine.peak().copy_(largest)
        mine.pull_own()
        for other in ranks:
            if other is not mine:
                mine.pull_other(other.travelling(), other.weights(), other.nodes)
        one = torch.ones((), device=h1.device)
        gradients.append(mine.gradient(h1[part], h2[part], one, len(h1)))
    d1, d2 = (torch.cat(each) for each in zip(*gradients, strict=True))
    return torch.stack(losses).sum(), d1, d2


# The interpreter takes log2(0) for a row of which a cold tile holds no pair, as the GPU does.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
class TestKernels:
    @pytest.mark.parametrize(("num_nodes", "dim"), SIZES)
    def test_every_temperature_and_pair_of_views(self, num_nodes: int, dim: int):
        temperatures = [0.03, 0.07] if INTERPRETED else [0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0]
        for noise in [0.0 if dim == 64 else 0.3] if INTERPRETED else VIEWS:
            h1, h2 = two_views(num_nodes, dim, noise, device=DEVICE)
            for temperature in temperatures:
                expected = exact(h1, h2, temperature)  # takes longer than all that it judges
                for precision in PRECISIONS:
                    found = fused(h1, h2, temperature, precision)
                    assert max(errors(found, expected)) <= bound(precision, temperature), precision

    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("temperature", [0.01, 0.1])
    @pytest.mark.parametrize(("num_nodes", "dim"), [(1, 7), (2, 1), (128, 64), (65, 130)])
    def test_odd_sizes(self, num_nodes: int, dim: int, temperature: float, precision: str):
        h1, h2 = two_views(num_nodes, dim, 0.5, device=DEVICE)
        found, expected = fused(h1, h2, temperature, precision), exact(h1, h2, temperature)
        limit = {"bf16": 5e-2, "tf32": 1e-2, "float32": 2e-5}[precision]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert float((ours - theirs).norm()) <= limit * float(theirs.norm()) + 1e-7

    @pytest.mark.parametrize("dim", [1, 7] if INTERPRETED else [1, 7, 140])
    @pytest.mark.parametrize("num_nodes", [1, 2, 3])
    def test_padding_outweighs_the_pairs_of_a_tiny_batch(
        self, num_nodes: int, dim: int, monkeypatch: pytest.MonkeyPatch
    ):
        """The factor that fits weights of pairs to float16 is too large for those of padding."""
        monkeypatch.setattr(sys.modules["graphcl.kernels.nt_xent_triton"], "ON_CPU", torch.float16)
        signs = torch.tensor([1.0, -1.0, 1.0], device=DEVICE)[:num_nodes, None]
        tilt = torch.linspace(-1, 1, num_nodes * dim, device=DEVICE).view(num_nodes, dim)
        h1 = signs * torch.linspace(1, 2, dim, device=DEVICE) + 0.5 * tilt
        for h2 in (h1 + 0.1, 0.1 - h1):  # positives agree, or point away from each other
            found, expected = fused(h1, h2, 0.1, "bf16"), exact(h1, h2, 0.1)
            for ours, theirs in zip(found, expected, strict=True):
                assert float((ours - theirs).norm()) <= 5e-3 * float(theirs.norm()) + 1e-7

    @pytest.mark.parametrize("dim", [100, 140])
    def test_large_batches_compute_the_gradient_in_the_backward_pass(
        self, dim: int, monkeypatch: pytest.MonkeyPatch
    ):
        h1, h2 = two_views(200, dim, 0.5, device=DEVICE)
        small = fused(h1, h2, 0.1, "bf16")
        monkeypatch.setattr(sys.modules["graphcl.losses.nt_xent"], "ROWS", 0)
        for ours, theirs in zip(fused(h1, h2, 0.1, "bf16"), small, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize(
        ("num_nodes", "precision", "temperature"),
        [(130, "bf16", 0.5), (130, "tf32", 0.5), (130, "float32", 0.01), (200, "bf16", 0.5)],
    )
    def test_blocks(
        self, num_nodes: int, precision: str, temperature: float, monkeypatch: pytest.MonkeyPatch
    ):
        h1, h2 = two_views(num_nodes, 140, 0.5, device=DEVICE)
        whole = fused(h1, h2, temperature, precision)
        monkeypatch.setattr(nt_xent_triton, "_SMALL_BLOCK", 256)
        assert max(errors(fused(h1, h2, temperature, precision), whole)) <= 1e-5

    @pytest.mark.parametrize(("num_nodes", "world", "temperature", "dim", "precision"), SHARES)
    def test_shares_of_several_processes(
        self, num_nodes: int, world: int, temperature: float, dim: int, precision: str
    ):
        h1, h2 = two_views(num_nodes, dim, 0.5, device=DEVICE)
        whole = fused(h1, h2, temperature, precision)
        found = shared(h1, h2, temperature, precision, world)
        # Sums in another order round P to bf16 or tf32 at other places.
        limit = {"bf16": 2e-3, "tf32": 2e-4, "float32": 1e-5}[precision]
        assert max(errors(found, whole)) <= limit * (10 if temperature < 0.07 else 1)

    def test_shares_in_blocks(self, monkeypatch: pytest.MonkeyPatch):
        h1, h2 = two_views(200, 70, 0.5, device=DEVICE)  # a tile of 128 rows for each view
        whole = fused(h1, h2, 0.1, "float32")
        monkeypatch.setattr(nt_xent_triton, "_SMALL_BLOCK", 256)
        assert max(errors(shared(h1, h2, 0.1, "float32", 2), whole)) <= 1e-5

    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("temperature", [0.01, 0.05, 0.5])
    def test_duplicate_and_zero_rows(self, temperature: float, precision: str):
        h1, h2 = two_views(100, 33, 1.0, device=DEVICE)
        h1[50:60], h2[90:] = h1[0], h1[:10]
        h1[7], h2[30] = 0, 0
        found, expected = fused(h1, h2, temperature, precision), exact(h1, h2, temperature)
        assert (found[1][7] == 0).all()
        assert (found[2][30] == 0).all()
        expected[1][7] = expected[2][30] = 0
        assert max(errors(found, expected)) <= max(bound(precision, temperature), 1e-5)

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    def test_the_cosine_does_not_see_the_scale(self, scale: float):
        h1, h2 = two_views(50, 33, 0.5, device=DEVICE)
        found, expected = (
            fused(h1 * scale, h2 * scale, 0.1, "float32"),
            fused(h1, h2, 0.1, "float32"),
        )
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1] * scale, expected[1], rtol=1e-4, atol=1e-7)

    def test_half_precision_inputs_get_gradients_of_their_own_type(self):
        h1, h2 = (h.half() for h in two_views(50, 33, 0.5, device=DEVICE))
        found, expected = fused(h1, h2, 0.1, "float32"), exact(h1, h2, 0.1)
        assert found[1].dtype == torch.float16
        assert max(errors(found, expected)) <= 1e-3

    def test_columns_of_a_wider_table(self):
        h1, h2 = two_views(50, 80, 0.5, device=DEVICE)
        for cut in ((slice(None), slice(3, 43)), (slice(None), slice(None, None, 2))):
            expected = fused(h1[cut].contiguous(), h2[cut].contiguous(), 0.1, "float32")
            pair = h1[cut].requires_grad_(), h2[cut].requires_grad_()
            loss = _NTXent.apply(*pair, 0.1, "float32", _Batch(50))
            assert torch.equal(loss.detach(), expected[0])
            assert torch.equal(torch.autograd.grad(loss, pair)[1], expected[2])

    @pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after the other")
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("dim", [40, 140])
    def test_same_bits_every_run(self, precision: str, dim: int, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(nt_xent_triton, "_SMALL_BLOCK", 256)
        h1, h2 = two_views(300, dim, 0.5, device=DEVICE)
        first = fused(h1, h2, 0.5, precision)
        for _ in range(3):
            for ours, theirs in zip(fused(h1, h2, 0.5, precision), first, strict=True):
                assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("chosen", ["ieee", "tf32"])
    def test_the_process_keeps_its_matmul_precision(self, chosen: str):
        matmul = torch.backends.cuda.matmul
        before = matmul.fp32_precision
        try:
            matmul.fp32_precision = chosen
            check(*two_views(130, 140, 0.5, device=DEVICE), 0.5, "float32")
            assert matmul.fp32_precision == chosen
        finally:
            matmul.fp32_precision = before

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("dim", [40, 100, 140])
    def test_capture_in_a_cuda_graph(self, dim: int, precision: str):
        h1, h2 = two_views(700, dim, 0.5, device=DEVICE)
        fused(h1, h2, 0.5, precision)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            fused(h1, h2, 0.5, precision)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            recorded = fused(h1, h2, 0.5, precision)
        for mine, new in zip(
            (h1, h2), two_views(700, dim, 0.5, seed=1, device=DEVICE), strict=True
        ):
            mine.copy_(new)
        graph.replay()
        for ours, theirs in zip(recorded, fused(h1, h2, 0.5, precision), strict=True):
            assert torch.equal(ours, theirs)
