"""Boosted trees: what one would do without embeddings, with the neighbours' columns beside."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np
import torch

from graphcl.answers.evidence import neighbour_means
from graphcl.answers.rivals import ask_model, boosted_trees, fit_model, side_by_side
from graphcl.arrays import Array, Integers
from graphcl.evaluation.splits import ACCURACY, Answers, Learner, Split, measure, metric_of
from graphcl.graphs.graph import Graph
from graphcl.research.systems.system import (
    Data,
    Labelled,
    Labels,
    OnEpoch,
    System,
    require_one_graph,
    silent,
)
from graphcl.research.systems.training import Checked

_SETTINGS: dict[str, tuple[bool, dict[str, Any]]] = {
    "own columns": (False, {}),
    "with neighbours": (True, {}),
    "with neighbours, small steps": (True, {"learning_rate": 0.05}),
}


@dataclass(frozen=True)
class Trees(Checked):
    """Boosted trees on a node's own columns and the means over its neighbours, near and far.

    The model is that of the plain rivals of `graphcl.predict`: it sees the columns that differ most
    between the classes of the train nodes, which bounds its time. Validation nodes choose whether
    it sees the neighbours' columns too, and whether its steps are small. Edge weights are ignored.

    Attributes:
        hops: how far the farthest neighbours are.
    """

    owner: ClassVar[str] = "trees"
    hops: int = 2

    def fit_predict(
        self,
        data: Data,
        *,
        seed: int,
        device: torch.device,  # noqa: ARG002 (trees are grown on the CPU)
        on_epoch: OnEpoch = silent,
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""
        graph = require_one_graph(data, self.owner)
        known = Labelled.of(graph, inductive=False, owner=self.owner)
        several, everyone = known.y.ndim == 2, np.arange(graph.num_nodes)
        y, val_y = (
            one if several else np.eye(known.num_outputs, dtype=np.int64)[one]
            for one in (known.y, known.val_y)
        )
        parts, exclusive = [(known.nodes, known.val, everyone)], not several
        (answer,) = self.learner(known.graph, seed=seed)(parts, [y], exclusive)
        metric = ACCURACY if exclusive else metric_of(val_y)
        best = int(np.argmax([measure(one, val_y, metric)[0] for one in answer.val]))
        scores = answer.test(best)
        on_epoch(1, 1)
        return scores.argmax(axis=1) if exclusive else (scores > 0).astype(np.int64)

    def learner(self, graph: Graph, *, seed: int) -> Learner:
        """Returns what grows trees on the train nodes of each split."""
        means = neighbour_means(graph)
        tables = [graph.x]
        for _ in range(0 if means is None else self.hops):
            tables.append(means @ tables[-1])
        seen = {False: graph.x, True: reduce(side_by_side, tables)}

        def learn(
            parts: Sequence[Split], targets: Sequence[Integers], exclusive: bool
        ) -> Iterator[Answers]:
            for (train, val, test), given in zip(parts, targets, strict=True):
                y = given.argmax(axis=1) if exclusive else given
                ask: list[Callable[[Array], Array]] = []
                for neighbours, settings in _SETTINGS.values():
                    x, make = seen[neighbours], partial(boosted_trees, **settings)
                    model = fit_model(make, x[train], y, seed)
                    ask.append(partial(_scores, model, x, given.shape[1], exclusive))

                def on_test(
                    place: int, ask: list[Callable[[Array], Array]] = ask, test: Array = test
                ) -> Array:
                    return ask[place](test)

                yield Answers(tuple(_SETTINGS), np.stack([one(val) for one in ask]), on_test)

        return learn


def _scores(model: Any, x: Any, outputs: int, exclusive: bool, nodes: Array) -> Array:
    """Returns scores of nodes, above 0 where a label has more than half the probability."""
    return ask_model(model, x[nodes], (outputs,)) - (0.0 if exclusive else 0.5)


SYSTEM = System("trees", "Boosted trees", Trees, deterministic=True)
