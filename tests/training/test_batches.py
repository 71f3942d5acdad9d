import torch

from graphcl.training.batches import batches_in, node_batches

SIZES = {"author": 10, "paper": 25, "topic": 3}


def every_node(batches):
    found = {name: [] for name in SIZES}
    for batch in batches:
        for name, rows in batch.items():
            found[name] += rows.tolist()
    return {name: sorted(rows) for name, rows in found.items()}


def test_an_epoch_visits_every_contrasted_node_once():
    whole = {name: list(range(size)) for name, size in SIZES.items()}
    for contrast in ("all", "each"):
        batches = node_batches(SIZES, contrast, 8, 0, 1)
        assert len(batches) == batches_in(SIZES, contrast, 8)
        assert every_node(batches) == whole
    some = node_batches(SIZES, "paper, topic", 8, 0, 1)
    assert every_node(some) == whole | {"author": []}
    assert len(some) == batches_in(SIZES, "paper,topic", 8) == 4


def test_all_mixes_types_and_each_does_not():
    assert max(len(batch) for batch in node_batches(SIZES, "all", 8, 0, 1)) > 1
    assert {len(batch) for batch in node_batches(SIZES, "each", 8, 0, 1)} == {1}
    first, again = (node_batches(SIZES, "all", 0, 0, 1)[0] for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in SIZES)
    other = node_batches(SIZES, "all", 0, 1, 1)[0]
    assert not torch.equal(first["paper"], other["paper"])
