"""The GPU kernels of NT-Xent against a dense float64 reference.

On a GPU they run as compiled; elsewhere Triton's interpreter runs them on the CPU. It must be on
before triton is first imported, and torch_geometric imports triton, so it gets its own process.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from graphcl.kernels import nt_xent_triton
from graphcl.kernels.nt_xent_triton import log_denominators, pull

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the kernels run right here")
def test_under_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def unit_rows(n: int, d: int, *, seed: int = 0) -> Tensor:
    z = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(z, dim=1).to(DEVICE)


def reference(z: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    z = z.double()
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    logs = logits.logsumexp(1)
    probabilities = (logits - logs[:, None]).exp()
    return logs, (probabilities + probabilities.T) @ z


def error(value: Tensor, expected: Tensor) -> float:
    assert value.dtype == torch.float32
    assert value.shape == expected.shape
    return float((value - expected).norm() / expected.norm())


def check(z: Tensor, temperature: float, precision: str) -> None:
    before = z.clone()
    logs = log_denominators(z, temperature, precision=precision)
    pulled = pull(z, logs, temperature, precision=precision)
    expected_logs, expected_pull = reference(z, temperature)
    assert error(logs, expected_logs) <= TOLERANCE[precision]
    assert error(pulled, expected_pull) <= TOLERANCE[precision]
    assert torch.equal(z, before)


# The interpreter takes log2(0) for a row of which a cold tile holds no pair, as the GPU does.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
class TestKernels:
    __test__ = INTERPRETED or torch.cuda.is_available()

    @pytest.mark.parametrize("temperature", [0.01, 0.05, 0.5, 1.0])
    @pytest.mark.parametrize(("n", "d"), [(2, 7), (100, 1), (128, 64), (130, 33), (301, 100)])
    def test_float32(self, n: int, d: int, temperature: float):
        check(unit_rows(n, d), temperature, "float32")

    @pytest.mark.parametrize("precision", ["bf16", "tf32"])
    @pytest.mark.parametrize("temperature", [0.05, 0.5])
    @pytest.mark.parametrize(("n", "d"), [(2, 33), (100, 1), (301, 100)])
    def test_tensor_core_precisions(self, n: int, d: int, temperature: float, precision: str):
        check(unit_rows(n, d), temperature, precision)

    @pytest.mark.parametrize("temperature", [0.01, 0.5])
    @pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
    @pytest.mark.parametrize("n", [257, 520, 1030])  # 3, 5 and 9 tiles in blocks of 1 and 2
    def test_blocks(
        self, n: int, precision: str, temperature: float, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(nt_xent_triton, "_SMALL_BLOCK", 256)
        check(unit_rows(n, 100), temperature, precision)

    @pytest.mark.parametrize("temperature", [0.01, 0.05, 0.5])
    def test_duplicate_and_zero_rows(self, temperature: float):
        z = unit_rows(200, 33)
        z[50:60] = z[0]
        z[150:] = z[:50]
        z[[7, 130]] = 0
        check(z, temperature, "float32")

    @pytest.mark.parametrize("temperature", [0.01, 0.025, 0.5])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_two_rows_as_near_and_as_far_as_can_be(self, sign: int, temperature: float):
        z = unit_rows(1, 33)
        check(torch.cat([z, sign * z]), temperature, "float32")

    def test_nothing_but_zeros(self):
        z = torch.zeros(5, 3, device=DEVICE)
        logs = log_denominators(z, 0.5, precision="bf16")
        assert torch.allclose(logs.exp(), torch.full_like(logs, 4.0))
        assert torch.equal(pull(z, logs, 0.5, precision="bf16"), z)

    @pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
    def test_same_bits_every_run(self, precision: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(nt_xent_triton, "_SMALL_BLOCK", 256)
        z = unit_rows(700, 40)
        logs = log_denominators(z, 0.5, precision=precision)
        pulled = pull(z, logs, 0.5, precision=precision)
        for _ in range(3):
            assert torch.equal(log_denominators(z, 0.5, precision=precision), logs)
            assert torch.equal(pull(z, logs, 0.5, precision=precision), pulled)

    @pytest.mark.parametrize("chosen", ["ieee", "tf32"])
    def test_the_process_keeps_its_matmul_precision(self, chosen: str):
        matmul = torch.backends.cuda.matmul
        before = matmul.fp32_precision
        try:
            matmul.fp32_precision = chosen
            check(unit_rows(130, 33), 0.5, "float32")
            assert matmul.fp32_precision == chosen
        finally:
            matmul.fp32_precision = before

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("precision", ["bf16", "tf32", "float32"])
    def test_capture_in_a_cuda_graph(self, precision: str):
        z = unit_rows(700, 100)
        pull(z, log_denominators(z, 0.5, precision=precision), 0.5, precision=precision)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logs = log_denominators(z, 0.5, precision=precision)
            pulled = pull(z, logs, 0.5, precision=precision)
        z.copy_(unit_rows(700, 100, seed=1))
        graph.replay()
        assert torch.equal(logs, log_denominators(z, 0.5, precision=precision))
        assert torch.equal(pulled, pull(z, logs, 0.5, precision=precision))
