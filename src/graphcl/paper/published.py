"""The numbers of the paper's Table 2 as printed, and the part of the table for each system.

Source: Hafidi, Ghogho, Ciblat, Swami, "GraphCL: Contrastive Self-Supervised Learning of Graph
Representations", 2020, Table 2; accuracies in percent, micro-averaged F1 as a fraction. The paper
averages its own runs over 50 seeds and quotes the numbers of other systems from their papers.
Table 1 is in `graphcl.datasets.CATALOGUE`.
"""

from dataclasses import dataclass

PAPER_RUNS = 50
TRANSDUCTIVE = ("cora", "citeseer", "pubmed")
INDUCTIVE = ("reddit", "ppi")

UNSUPERVISED, SUPERVISED, BEYOND = "Unsupervised", "Supervised", "Beyond the paper"


@dataclass(frozen=True)
class Published:
    """A published score.

    Attributes:
        mean: in the unit of the table.
        std: the deviation printed after ±, or None if there is none.
    """

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class System:
    """A line of Table 2.

    Attributes:
        name: its name for ``--methods``.
        title: its name in the table.
        group: its part of the table.
        scores: the published score by dataset.
        also: datasets that it runs on although the paper has no score for them.
    """

    name: str
    title: str
    group: str
    scores: dict[str, Published]
    also: tuple[str, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets for which the table includes this system."""
        return (*self.scores, *self.also)


def _cited(**scores: tuple[float, float | None]) -> dict[str, Published]:
    return {dataset: Published(*score) for dataset, score in scores.items()}


TABLE_2 = (
    System(
        "raw",
        "Raw features",
        UNSUPERVISED,
        _cited(
            cora=(47.9, 0.4),
            citeseer=(49.3, 0.2),
            pubmed=(69.1, 0.3),
            reddit=(0.585, None),
            ppi=(0.422, None),
        ),
    ),
    System(
        "deepwalk",
        "DeepWalk",
        UNSUPERVISED,
        _cited(cora=(67.2, None), citeseer=(43.2, None), pubmed=(65.3, None)),
    ),
    System(
        "deepwalk-features",
        "DeepWalk + features",
        UNSUPERVISED,
        _cited(cora=(70.7, 0.6), citeseer=(51.4, 0.5), pubmed=(74.3, 0.9)),
    ),
    System(
        "ep-b",
        "EP-B",
        UNSUPERVISED,
        _cited(cora=(78.1, 1.5), citeseer=(71.0, 1.4), pubmed=(79.6, 2.1)),
    ),
    System(
        "graphsage-gcn",
        "GraphSAGE-GCN",
        UNSUPERVISED,
        _cited(reddit=(0.908, None), ppi=(0.465, None)),
    ),
    System(
        "graphsage-mean",
        "GraphSAGE-mean",
        UNSUPERVISED,
        _cited(reddit=(0.897, None), ppi=(0.486, None)),
    ),
    System(
        "graphsage-lstm",
        "GraphSAGE-LSTM",
        UNSUPERVISED,
        _cited(reddit=(0.907, None), ppi=(0.482, None)),
    ),
    System(
        "graphsage-pool",
        "GraphSAGE-pool",
        UNSUPERVISED,
        _cited(reddit=(0.892, None), ppi=(0.502, None)),
    ),
    System(
        "dgi",
        "DGI",
        UNSUPERVISED,
        _cited(cora=(82.3, 0.6), citeseer=(71.8, 0.7), pubmed=(76.8, 0.6)),
    ),
    System("dgi-inductive", "DGI", UNSUPERVISED, _cited(reddit=(0.940, 0.001), ppi=(0.638, 0.002))),
    System(
        "graphcl",
        "GraphCL",
        UNSUPERVISED,
        _cited(
            cora=(83.6, 0.5),
            citeseer=(72.5, 0.7),
            pubmed=(79.8, 0.5),
            reddit=(0.951, 0.01),
            ppi=(0.659, 0.006),
        ),
    ),
    System(
        "gcn",
        "GCN",
        SUPERVISED,
        _cited(cora=(81.5, None), citeseer=(70.3, None), pubmed=(79.0, None)),
    ),
    System(
        "gat", "GAT", SUPERVISED, _cited(cora=(83.0, 0.3), citeseer=(72.5, 0.7), pubmed=(79.0, 0.3))
    ),
    System("fastgcn", "FastGCN", SUPERVISED, _cited(reddit=(0.937, None))),
    System("gaan", "GaAN", SUPERVISED, _cited(reddit=(0.958, 0.001), ppi=(0.969, 0.002))),
    # The paper names Label Propagation among the rivals, but prints no number for it.
    System("label-propagation", "Label Propagation", BEYOND, {}, also=TRANSDUCTIVE),
    System("random-encoder", "Random encoder", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
    System("propagation", "Propagation, no training", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
)


def systems(dataset: str) -> list[System]:
    """Returns the lines of the table for one dataset, in the paper's order."""
    return [system for system in TABLE_2 if dataset in system.datasets]


def score_key(dataset: str) -> str:
    """Returns the column of a row with the score that the paper reports on `dataset`."""
    return "micro_f1" if dataset in INDUCTIVE else "accuracy"


def scale(dataset: str) -> float:
    """Returns the factor from a row's fraction to the table's unit."""
    return 1.0 if dataset in INDUCTIVE else 100.0


def decimals(dataset: str) -> int:
    """Returns the number of decimals in the table."""
    return 3 if dataset in INDUCTIVE else 1
