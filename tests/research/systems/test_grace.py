import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import rows
from graphcl.evaluation import linear_probe
from graphcl.research.systems.grace import BASELINE, GRACE, grace_loss

CPU = torch.device("cpu")
ROWS = Path(__file__).parents[2] / "benchmarks/results/search_grace.jsonl"


def test_the_loss_is_that_of_plain_loops(generator):
    u, v = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm()))

    def one(a, b, i):
        positive = math.exp(cosine(a[i], b[i]) / 0.4)
        between = sum(math.exp(cosine(a[i], b[k]) / 0.4) for k in range(6) if k != i)
        within = sum(math.exp(cosine(a[i], a[k]) / 0.4) for k in range(6) if k != i)
        return -math.log(positive / (positive + between + within))

    expected = sum(one(u, v, i) + one(v, u, i) for i in range(6)) / 12
    assert math.isclose(grace_loss(u, v, 0.4).item(), expected, rel_tol=1e-10)


def test_it_learns(graph):
    losses = []
    method = GRACE(dim=32, epochs=60, learning_rate=0.01, feature_scaling="none")
    z = method.embed(graph, seed=0, device=CPU, on_epoch=lambda done, _: losses.append(done))
    assert losses == list(range(1, 61))
    assert z.shape == (graph.num_nodes, 32)
    assert linear_probe(z, graph).accuracy > 0.7


def test_settings_are_the_published_ones_or_chosen_on_validation():
    published = BASELINE.method("")
    assert (published.dim, published.learning_rate, published.epochs) == (128, 5e-4, 200)
    assert BASELINE.method("pubmed").epochs == 1500
    found = defaultdict(list)
    for row in rows.read(ROWS):
        found[row["graph"], tuple(sorted(row["settings"].items()))].append(row["val_accuracy"])
    for graph in ("cora", "citeseer"):
        means = {
            settings: sum(scores) / len(scores)
            for (name, settings), scores in found.items()
            if name == graph and len(scores) >= 3
        }
        best = dict(max(means, key=means.get))
        assert {key: getattr(BASELINE.method(graph), key) for key in best} == best


def test_negative_and_zero_rows_do_no_harm(graph):
    x = graph.x.copy()
    x[5] = 0
    z = GRACE(dim=4, epochs=3).embed(replace(graph, x=x), seed=0, device=CPU)
    assert np.isfinite(z).all()
