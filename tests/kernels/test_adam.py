import subprocess
import sys

import pytest
import torch

from graphcl.kernels.adam import Adam


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def stepped(optimiser, model, steps, *, seed):
    x = torch.randn(steps, 4, 5, generator=torch.Generator().manual_seed(seed))
    for batch in x:
        optimiser.zero_grad()
        model(batch).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_weights_and_state_are_pytorchs_bit_for_bit(fused, weight_decay):
    settings = {"lr": 0.01, "weight_decay": weight_decay, "fused": fused}
    theirs, ours = module(), module()
    reference = torch.optim.Adam(theirs.parameters(), **settings)
    optimiser = Adam(ours.parameters(), **settings)
    stepped(reference, theirs, 5, seed=0)
    stepped(optimiser, ours, 5, seed=0)
    kept = optimiser.state_dict()
    assert str(kept) == str(reference.state_dict())
    again = Adam(ours.parameters(), **settings)
    again.load_state_dict(kept)
    stepped(reference, theirs, 5, seed=1)
    stepped(again, ours, 5, seed=1)
    for expected, found in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_a_step_is_not_differentiated():
    model = module()
    optimiser = Adam(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimiser.step()
    assert all(parameter.grad_fn is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_a_training_imports_no_compiler():
    code = """
import sys
import numpy as np
import graphcl
x = np.eye(12, dtype=np.float32)
graph = graphcl.Graph.from_edge_index(np.stack([np.arange(11), np.arange(1, 12)]), x)
graphcl.GraphCL(epochs=2, dim=8, device="cpu").fit_transform(graph)
sys.exit("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False)
    assert done.returncode == 0
