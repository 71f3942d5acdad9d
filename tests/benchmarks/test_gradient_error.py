import pytest
import torch

from benchmarks import gradient_error
from benchmarks.gradient_error import Exact, measure, promised, two_views
from tests.losses.test_nt_xent import paper_loss


def test_the_reference_is_the_papers_double_loop():
    pair = [h.double().requires_grad_() for h in two_views(6, 4, 0.5, torch.device("cpu"))]
    loss = paper_loss(*pair, 0.3)
    gradient = torch.cat(torch.autograd.grad(loss, pair))
    found, its_gradient = Exact(*(h.detach() for h in pair)).at(0.3)
    assert found == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(its_gradient, gradient)


def test_the_reference_holds_where_the_positive_is_everything():
    """Against 50 digits of the tiny gap between a sum and its largest term."""
    pair = two_views(3, 64, 0.0, torch.device("cpu"))
    z = torch.nn.functional.normalize(pair[0].double())
    scores = z @ z.T / 0.03
    # Identical views: every negative counts twice, beside a positive of e^(1/τ).
    tiny = [2 * sum((scores[u, v] - 1 / 0.03).exp() for v in range(3) if v != u) for u in range(3)]
    expected = sum(2 * float(torch.log1p(one)) for one in tiny) / 3
    assert Exact(*pair).at(0.03)[0] == pytest.approx(expected, rel=1e-10)


def test_a_cpu_keeps_the_promise():
    rows = list(measure(64, 64, "0.3", torch.device("cpu")))
    assert {row["precision"] for row in rows} == {"float32"}
    assert len(rows) == len(gradient_error.TEMPERATURES)
    assert all(max(row["gradient"], row["loss_error"]) <= row["promised"] for row in rows)


def test_committed_rows_keep_the_promise():
    found = gradient_error.rows.read(gradient_error.ROWS)
    broken = [
        row
        for row in found
        if row["scale"] >= gradient_error.SMALLEST
        and max(row["gradient"], row["loss_error"]) > promised(row["precision"], row["temperature"])
    ]
    assert len(found) > 900
    assert broken == []
    assert gradient_error.PAGE.read_text(encoding="utf-8") == gradient_error.page(found)
