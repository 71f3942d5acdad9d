import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.distributed import Share
from graphcl.errors import ParameterError
from graphcl.kernels import nt_xent_blocked
from graphcl.losses import NTXent, nt_xent
from graphcl.losses.nt_xent import mutual_information_bound, nt_xent_across


def paper_loss(h1, h2, temperature):
    """Eqs. loss1, lossv1 and loss2, as plain loops over the minibatch."""

    def s(a, b):
        norms = a.norm() * b.norm()
        return a @ b / norms if norms > 0 else (a * b).sum() * 0

    def directed(first, second, u):
        positive = torch.exp(s(first[u], second[u]) / temperature)
        same = sum(
            torch.exp(s(first[u], first[v]) / temperature) for v in range(len(first)) if v != u
        )
        other = sum(torch.exp(s(first[u], second[v]) / temperature) for v in range(len(second)))
        return -torch.log(positive / (same + other))

    nodes = range(len(h1))
    return sum(directed(h1, h2, u) + directed(h2, h1, u) for u in nodes) / len(h1)


def pair(num_nodes, dim, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(num_nodes, dim, generator=generator, dtype=dtype).requires_grad_()
        for _ in range(2)
    )


def value_and_gradients(loss, h1, h2):
    h1, h2 = (h.detach().clone().requires_grad_() for h in (h1, h2))
    value = loss(h1, h2)
    value.backward()
    return value.detach(), h1.grad, h2.grad


def assert_matches_paper(h1, h2, temperature, **tolerance):
    expected = value_and_gradients(
        lambda a, b: paper_loss(a, b, temperature), h1.double(), h2.double()
    )
    found = value_and_gradients(lambda a, b: nt_xent(a, b, temperature), h1, h2)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, **tolerance)


@pytest.mark.parametrize("rows", [1, 3, 5, 512])
@pytest.mark.parametrize("kept_bytes", [0, 2**28])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
def test_matches_the_papers_double_loop(rows, kept_bytes, temperature, monkeypatch):
    monkeypatch.setattr(nt_xent_blocked, "STRIP_ROWS", rows)
    monkeypatch.setattr(nt_xent_blocked, "KEPT_BYTES", kept_bytes)
    assert_matches_paper(*pair(7, 4), temperature)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.1, 0.5, 1.0, 5.0]),
    st.integers(0, 99),
)
def test_matches_the_papers_double_loop_anywhere(num_nodes, dim, temperature, seed):
    assert_matches_paper(*pair(num_nodes, dim, seed), temperature)


def test_float32_is_as_good_as_float32():
    h1, h2 = pair(9, 16, dtype=torch.float32)
    assert_matches_paper(h1, h2, 0.1, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_gradcheck(temperature, monkeypatch):
    monkeypatch.setattr(nt_xent_blocked, "STRIP_ROWS", 4)
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, temperature), pair(5, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_temperatures_take_the_maximum_out(dtype):
    """Against logsumexp in float64: the paper's loops themselves overflow here."""
    temperature = 0.001
    assert not nt_xent_blocked.exponent_fits(dtype, temperature)
    h1, h2 = pair(6, 3, dtype=dtype)

    def stable(a, b):
        z = torch.nn.functional.normalize(torch.cat([a, b]))
        logits = (z @ z.T / temperature).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
        return (logits.logsumexp(1) - logits[range(12), [*range(6, 12), *range(6)]]).sum() / 6

    expected = value_and_gradients(stable, h1.double(), h2.double())
    found = value_and_gradients(lambda a, b: nt_xent(a, b, temperature), h1, h2)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.isfinite(ours).all()
        scale = theirs.abs().max() * (1e-3 if dtype == torch.float32 else 1e-9)
        assert (ours - theirs).abs().max() <= scale


def test_one_node_has_no_negatives_and_no_loss():
    value, d1, d2 = value_and_gradients(nt_xent, *pair(1, 4))
    assert value.abs() < 1e-12
    assert d1.abs().max() < 1e-12
    assert d2.abs().max() < 1e-12


def test_duplicate_rows():
    h1, h2 = pair(2, 3)
    assert_matches_paper(h1[[0, 0, 1, 0]], h2[[0, 0, 1, 1]], 0.1)
    same = torch.ones(4, 3, dtype=torch.float64)
    assert nt_xent(same, same, 0.05).item() == pytest.approx(2 * math.log(7))


def test_zero_rows_have_cosine_zero_and_no_gradient():
    h1, h2 = (h.detach().clone() for h in pair(5, 3))
    h1[1], h2[1], h2[3] = 0, 0, 0
    value, d1, d2 = value_and_gradients(lambda a, b: nt_xent(a, b, 0.2), h1, h2)
    torch.testing.assert_close(value, paper_loss(h1, h2, 0.2))
    assert (d1[1] == 0).all()
    assert (d2[[1, 3]] == 0).all()
    assert torch.isfinite(torch.cat([d1, d2])).all()
    assert (d1[0] != 0).any()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_cosine_does_not_see_the_scale(scale):
    h1, h2 = pair(5, 3, dtype=torch.float32)
    torch.testing.assert_close(nt_xent(h1 * scale, h2 * scale), nt_xent(h1, h2))


def test_half_precision_inputs_get_gradients_of_their_own_type():
    h1, h2 = (h.detach().bfloat16().requires_grad_() for h in pair(5, 3))
    nt_xent(h1, h2).backward()
    assert h1.grad.dtype == torch.bfloat16
    assert torch.isfinite(h2.grad).all()


def test_a_second_backward_gives_the_same_gradient():
    h1, h2 = pair(6, 4)
    loss = nt_xent(h1, h2)
    (first,) = torch.autograd.grad(loss, h1, retain_graph=True)
    (second,) = torch.autograd.grad(loss, h1)
    torch.testing.assert_close(first, second)


def test_halves_of_one_tensor_are_two_tensors():
    whole = torch.cat(pair(6, 4)).detach().requires_grad_()
    inside = whole * 1.0  # as an encoder's output: not a leaf
    h1, h2 = inside.chunk(2)
    h1.retain_grad()
    seen = []
    h2.register_hook(seen.append)
    nt_xent(h1, h2, 0.1).backward()
    expected = value_and_gradients(lambda a, b: nt_xent(a, b, 0.1), *whole.chunk(2))
    torch.testing.assert_close(h1.grad, expected[1])
    torch.testing.assert_close(seen[0], expected[2])
    torch.testing.assert_close(whole.grad, torch.cat(expected[1:]))
    h1, h2 = whole.chunk(2)
    (d1,) = torch.autograd.grad(nt_xent(h1, h2, 0.1), h1)
    torch.testing.assert_close(d1, expected[1])


def test_a_half_that_was_cut_off_receives_no_gradient():
    whole = torch.cat(pair(6, 4)).detach().requires_grad_()
    h1 = whole[:6]
    with torch.no_grad():
        h2 = whole[6:]
    nt_xent(h1, h2, 0.1).backward()
    assert (whole.grad[6:] == 0).all()
    assert (whole.grad[:6] != 0).any()


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_changes_nothing(inside):
    h1, h2 = pair(40, 16, dtype=torch.float32)
    expected = value_and_gradients(lambda a, b: nt_xent(a, b, 0.1), h1, h2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nt_xent(h1, h2, 0.1)
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert torch.equal(loss.detach(), expected[0])
    assert torch.equal(h1.grad, expected[1])
    assert torch.equal(h2.grad, expected[2])


def test_memory_is_freed_after_the_backward_pass():
    """Whoever keeps the loss for a plot must not keep its tables."""
    h1, h2 = pair(50, 8)
    loss = nt_xent(h1, h2, 0.1)
    node = loss.grad_fn
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert node.pairs.rows.numel() == 0


VIEWS = [0.0, 0.1, 0.3, 1.0, None]  # noise between the views; None: independent


def two_views(num_nodes, dim, noise, *, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    h1, other = (torch.randn(num_nodes, dim, generator=generator) for _ in range(2))
    return h1.to(device), (other if noise is None else h1 + noise * other).to(device)


def exact(h1, h2, temperature):
    """The paper's loss in float64, with nothing subtracted from a sum that contains it."""
    h1, h2 = (h.detach().double().requires_grad_() for h in (h1, h2))
    z = torch.nn.functional.normalize(torch.cat([h1, h2]), eps=1e-300)
    num_nodes = len(h1)
    same = torch.eye(2 * num_nodes, dtype=torch.bool, device=h1.device)
    logits = (z @ z.T / temperature).masked_fill(same | same.roll(num_nodes, 1), -torch.inf)
    positives = (z[:num_nodes] * z[num_nodes:]).sum(1) / temperature
    gaps = logits.logsumexp(1) - positives.repeat(2)
    loss = -torch.nn.functional.logsigmoid(-gaps).sum() / num_nodes
    return loss.detach(), *torch.autograd.grad(loss, (h1, h2))


def errors(found, expected):
    """Relative errors of the loss and of the gradient."""
    gradients = [torch.cat([part.double() for part in each[1:]]) for each in (found, expected)]
    gradient = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    return float((found[0] - expected[0]).abs() / expected[0]), float(gradient)


@pytest.mark.parametrize("noise", VIEWS)
@pytest.mark.parametrize("temperature", [0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(("num_nodes", "dim"), [(64, 64), (64, 513), (300, 64)])
def test_float32_is_exact_at_every_temperature(num_nodes, dim, temperature, noise):
    h1, h2 = two_views(num_nodes, dim, noise)
    found = value_and_gradients(lambda a, b: nt_xent(a, b, temperature), h1, h2)
    assert max(errors(found, exact(h1, h2, temperature))) <= 1e-5


def test_the_exact_reference_is_the_papers():
    h1, h2 = pair(6, 4)
    expected = value_and_gradients(lambda a, b: paper_loss(a, b, 0.3), h1, h2)
    assert max(errors(exact(h1, h2, 0.3), expected)) < 1e-12


def test_it_keeps_no_square_matrix_beyond_the_limit(monkeypatch):
    """Largest tensor made on the way, forward and backward: N × d, or a strip of d rows."""
    monkeypatch.setattr(nt_xent_blocked, "STRIP_ROWS", 3)
    monkeypatch.setattr(nt_xent_blocked, "KEPT_BYTES", 0)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    h1, h2 = pair(200, 3)
    with Watch():
        nt_xent(h1, h2).backward()
    assert largest <= 400 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(2, 3), torch.ones(2, 3), 0.0), "temperature must be positive; got 0.0"),
        ((torch.ones(2, 3), torch.ones(3, 3)), "of one shape"),
        ((torch.ones(0, 3), torch.ones(0, 3)), "with M > 0"),
        ((torch.ones(3), torch.ones(3)), "of one shape"),
        ((np.ones((2, 3)), np.ones((2, 3))), "must be dense tensors .*; got 'ndarray and ndarray'"),
        ((torch.ones(2, 3), None), "got 'a tensor of float32 and NoneType'"),
        ((torch.ones(2, 3, dtype=torch.int64),) * 2, "got 'a tensor of int64 and a"),
        ((torch.ones(2, 3, dtype=torch.complex64),) * 2, "got 'a tensor of complex64 and a"),
        ((torch.eye(3).to_sparse(),) * 2, "got 'a tensor of sparse_coo float32 and a"),
        (
            (torch.ones(2, 3), torch.ones(2, 3), "a"),
            "temperature must be a positive number; got 'a'",
        ),
        ((torch.ones(2, 3), torch.ones(2, 3), None), "a positive number; got 'NoneType'"),
        ((torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)), "a positive number; got 'a tensor"),
        ((torch.ones(2, 3), torch.ones(2, 3), math.nan), "temperature must be positive; got nan"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ParameterError, match=message) as caught:
        nt_xent(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("temperature", [1, np.float32(1), np.int64(1), torch.tensor(1.0)])
def test_any_number_is_a_temperature(temperature):
    h1, h2 = pair(4, 3)
    assert nt_xent(h1, h2, temperature) == nt_xent(h1, h2, 1.0)


def test_a_temperature_that_wants_a_gradient_is_refused():
    with pytest.raises(ParameterError, match="no gradient flows into temperature"):
        nt_xent(*pair(4, 3), torch.tensor(0.5, requires_grad=True))


def test_precision_names():
    h1, h2 = pair(2, 3)
    with pytest.raises(ParameterError, match="precision must be 'auto', 'float32', 'tf32'"):
        nt_xent(h1, h2, precision="half")
    with pytest.raises(ParameterError, match="needs a CUDA GPU"):
        nt_xent(h1, h2, precision="bf16")


def test_the_bound_of_the_paper():
    assert mutual_information_bound(1.5, 11) == pytest.approx(math.log(20) - 1.5)
    assert mutual_information_bound(0.0, 1) is None


def test_bad_arguments_of_several_processes():
    h = torch.ones(3, 2)
    with pytest.raises(ParameterError, match="this process's share; got"):
        nt_xent_across(h, h, num_nodes=7, share=Share(0, 2))
    with pytest.raises(ParameterError, match="'bf16' needs a CUDA GPU"):
        nt_xent_across(h, h, num_nodes=6, share=Share(0, 2), precision="bf16")
    with pytest.raises(ParameterError, match="as many as the 4 processes; got 3"):
        nt_xent_across(h, h, num_nodes=3, share=Share(0, 4))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_span_is_that_of_views_that_agree_and_of_rows_that_coincide(temperature):
    best, nothing = NTXent(temperature).span(6)
    apart, same = torch.eye(6, dtype=torch.float64), torch.ones(6, 3, dtype=torch.float64)
    assert nt_xent(apart, apart, temperature).item() == pytest.approx(best)
    assert nt_xent(same, same, temperature).item() == pytest.approx(nothing)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def penalised(loss, h1, h2):
    gradient, *_ = torch.autograd.grad(loss(h1, h2), [h1], create_graph=True)
    return gradient.square().sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_derivative_raises_and_is_not_zero(compiled, device):
    h1, h2 = (h.detach().to(device).requires_grad_() for h in pair(5, 3))
    loss = torch.compile(nt_xent, fullgraph=True, backend="eager") if compiled else nt_xent
    expected, *_ = torch.autograd.grad(penalised(lambda a, b: paper_loss(a, b, 0.5), h1, h2), [h1])
    assert expected.abs().max() > 0.01  # so nothing at all would be wrong
    value = penalised(loss, h1, h2)
    for wanted in (h1, h2):
        with pytest.raises(ParameterError, match="nt_xent: its gradient cannot be differentiated"):
            torch.autograd.grad(value, [wanted], retain_graph=True)
    # A graph of the gradients that nobody differentiates is no fault.
    again, *_ = torch.autograd.grad(nt_xent(h1, h2), [h1], create_graph=True)
    torch.testing.assert_close(again, torch.autograd.grad(nt_xent(h1, h2), [h1])[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_it_is_one_operator_with_the_same_value_and_gradients(backend, device):
    torch.compiler.reset()

    def step(h1, h2):  # what comes before and after is compiled with it
        return 3 * nt_xent(torch.tanh(h1), h2.relu(), 0.3)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for num_nodes, dtype in ((5, torch.float32), (7, torch.float32), (9, torch.float64)):
        h1, h2 = (h.detach().to(device) for h in pair(num_nodes, 4, dtype=dtype))
        expected = value_and_gradients(step, h1, h2)
        for ours, theirs in zip(value_and_gradients(compiled, h1, h2), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        with torch.no_grad():
            torch.testing.assert_close(compiled(h1, h2), expected[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_on_16_bits_and_under_autocast_nothing_changes(autocast, device):
    torch.compiler.reset()
    h1, h2 = (h.detach().to(device) for h in pair(6, 4, dtype=torch.bfloat16))
    expected = value_and_gradients(nt_xent, h1, h2)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        compiled = torch.compile(nt_xent, fullgraph=True, backend="aot_eager")
        found = value_and_gradients(compiled, h1, h2)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_compiled_it_refuses_what_it_refuses():
    torch.compiler.reset()
    compiled = torch.compile(nt_xent, backend="eager")
    with pytest.raises(ParameterError, match="no gradient flows into temperature"):
        compiled(*pair(3, 2), torch.tensor(0.5, requires_grad=True))
    with pytest.raises(ParameterError, match="temperature must be positive; got -1"):
        compiled(*pair(3, 2), -1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [True, False])
def test_the_operator_is_what_pytorch_asks_of_one(keep, device):
    h1, h2 = (h.detach().to(device).requires_grad_(keep) for h in pair(5, 3, dtype=torch.float32))
    torch.library.opcheck(torch.ops.graphcl.nt_xent, (h1, h2, 0.5, "auto", keep))
