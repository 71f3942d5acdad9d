import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphcl.baselines.fitting import CHECK_EVERY, EarlyStopping, seeded

CPU = torch.device("cpu")


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(1, 12)
)
def test_early_stopping_is_the_plain_loop(epochs, patience):
    module = nn.Linear(1, 1)
    stopping = EarlyStopping(module, patience=patience)
    kept, waited, running = module.weight.item(), 0, True
    for number, (keep, improved) in enumerate(epochs, 1):
        with torch.no_grad():
            module.weight.fill_(number)
        stopping.update(keep=torch.tensor(keep), improved=torch.tensor(improved))
        if running:  # what a loop that asks at every epoch would do
            kept = number if keep else kept
            waited = 0 if improved else waited + 1
            running = waited < patience
        asked = number % CHECK_EVERY == 0
        assert stopping.stopped(number) == (asked and not running)
    stopping.restore()
    assert module.weight.item() == kept


def test_seeded_draws_are_those_of_the_name():
    def draw(seed, name):
        with seeded(seed, name, CPU):
            return torch.rand(3)

    assert torch.equal(draw(0, "a"), draw(0, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))
    assert not torch.equal(draw(0, "a"), draw(1, "a"))
