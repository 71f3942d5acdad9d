"""The numbers of the paper's Table 2 as printed, and the part of the table for each system.

Source: Hafidi, Ghogho, Ciblat, Swami, "GraphCL: Contrastive Self-Supervised Learning of Graph
Representations", 2020, Table 2; accuracies in percent, micro-averaged F1 as a fraction. The paper
averages its own runs over 50 seeds and quotes the numbers of other systems from their papers.
Table 1 is in `graphcl.datasets.CATALOGUE`.
"""

from dataclasses import dataclass
from typing import NamedTuple

PAPER_RUNS = 50
TRANSDUCTIVE = ("cora", "citeseer", "pubmed")
INDUCTIVE = ("reddit", "ppi")

UNSUPERVISED, SUPERVISED, BEYOND = "Unsupervised", "Supervised", "Beyond the paper"


class Published(NamedTuple):
    """A published score.

    Attributes:
        mean: in the unit of the table.
        std: the deviation printed after ±, or None if there is none.
    """

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Line:
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


# A dash stands for no number. The paper names Label Propagation among the rivals, but prints none.
_AS_PRINTED = {
    ("raw", "Raw features", UNSUPERVISED): "47.9±0.4 49.3±0.2 69.1±0.3 0.585 0.422",
    ("deepwalk", "DeepWalk", UNSUPERVISED): "67.2 43.2 65.3 - -",
    ("deepwalk-features", "DeepWalk + features", UNSUPERVISED): "70.7±0.6 51.4±0.5 74.3±0.9 - -",
    ("ep-b", "EP-B", UNSUPERVISED): "78.1±1.5 71.0±1.4 79.6±2.1 - -",
    ("graphsage-gcn", "GraphSAGE-GCN", UNSUPERVISED): "- - - 0.908 0.465",
    ("graphsage-mean", "GraphSAGE-mean", UNSUPERVISED): "- - - 0.897 0.486",
    ("graphsage-lstm", "GraphSAGE-LSTM", UNSUPERVISED): "- - - 0.907 0.482",
    ("graphsage-pool", "GraphSAGE-pool", UNSUPERVISED): "- - - 0.892 0.502",
    ("dgi", "DGI", UNSUPERVISED): "82.3±0.6 71.8±0.7 76.8±0.6 - -",
    ("dgi-inductive", "DGI", UNSUPERVISED): "- - - 0.940±0.001 0.638±0.002",
    ("graphcl", "GraphCL", UNSUPERVISED): "83.6±0.5 72.5±0.7 79.8±0.5 0.951±0.01 0.659±0.006",
    ("gcn", "GCN", SUPERVISED): "81.5 70.3 79.0 - -",
    ("gat", "GAT", SUPERVISED): "83.0±0.3 72.5±0.7 79.0±0.3 - -",
    ("fastgcn", "FastGCN", SUPERVISED): "- - - 0.937 -",
    ("gaan", "GaAN", SUPERVISED): "- - - 0.958±0.001 0.969±0.002",
}


def _scores(printed: str) -> dict[str, Published]:
    """Returns the scores of a line: a mean, or mean±deviation, for each dataset."""
    columns = zip((*TRANSDUCTIVE, *INDUCTIVE), printed.split(), strict=True)
    return {name: Published(*map(float, text.split("±"))) for name, text in columns if text != "-"}


TABLE_2 = (
    *(Line(*line, _scores(printed)) for line, printed in _AS_PRINTED.items()),
    Line("label-propagation", "Label Propagation", BEYOND, {}, also=TRANSDUCTIVE),
    Line("random-encoder", "Random encoder", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
    Line("propagation", "Propagation, no training", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
)


def lines_of(dataset: str) -> list[Line]:
    """Returns the lines of the table for one dataset, in the paper's order."""
    return [line for line in TABLE_2 if dataset in line.datasets]


def score_key(dataset: str) -> str:
    """Returns the column of a row with the score that the paper reports on `dataset`."""
    return "micro_f1" if dataset in INDUCTIVE else "accuracy"


def scale(dataset: str) -> float:
    """Returns the factor from a row's fraction to the table's unit."""
    return 1.0 if dataset in INDUCTIVE else 100.0


def decimals(dataset: str) -> int:
    """Returns the number of decimals in the table."""
    return 3 if dataset in INDUCTIVE else 1
