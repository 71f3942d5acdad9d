r"""Label propagation by harmonic functions (Zhu, Ghahramani, Lafferty, 2003)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.sparse.linalg
import torch
from scipy.sparse.csgraph import connected_components

from graphcl.errors import TrainingError
from graphcl.research.systems.inputs import require_one_graph, visible_labels
from graphcl.research.systems.protocol import Baseline, Data, Labels, OnEpoch, silent

Floats = npt.NDArray[np.float64]
TOLERANCE = 1e-8


@dataclass(frozen=True)
class LabelPropagation:
    r"""Gives every node the mean label of its neighbours; training labels stay fixed.

    With nodes ordered into labelled :math:`l` and unlabelled :math:`u`, the harmonic function is

    .. math:: f_u = (D_{uu} - A_{uu})^{-1} A_{ul}\, f_l ,

    which is the limit of repeated averaging over neighbours. A node that no label reaches gets the
    class frequencies of the training labels. Features are ignored.

    Differs from the paper: edges have weight 1, or their weight in the graph; Zhu et al. derive
    weights from distances of features.

    Attributes:
        class_mass: scale each class so that its sum over the unlabelled nodes is its frequency
            among the training labels (class mass normalisation, section 4 of their paper). Without
            it, nearly all nodes of Pubmed get the same class.
    """

    class_mass: bool = True

    def fit_predict(
        self,
        data: Data,
        *,
        seed: int,  # noqa: ARG002 (nothing here is random)
        device: torch.device,  # noqa: ARG002 (a sparse solve on the CPU takes well under a second)
        on_epoch: OnEpoch = silent,
    ) -> Labels:
        """Returns the classes of all nodes, ``[num_nodes]``."""
        graph = require_one_graph(data, "label-propagation")
        labels = visible_labels(graph, "label-propagation")
        known = labels.y[labels.train]
        one_hot = np.eye(labels.num_classes)[known]
        weight = graph.edge_weight
        values = np.ones(len(graph.indices)) if weight is None else weight.astype(np.float64)
        size = (graph.num_nodes, graph.num_nodes)
        adjacency = scipy.sparse.csr_array((values, graph.indices, graph.indptr), shape=size)
        frequency = one_hot.mean(axis=0)
        f = harmonic(adjacency, labels.train, one_hot, elsewhere=frequency)
        if self.class_mass:
            unlabelled = np.setdiff1d(np.arange(graph.num_nodes), labels.train)
            mass = f[unlabelled].sum(axis=0)
            f[unlabelled] *= frequency / np.where(mass > 0, mass, 1)
        on_epoch(1, 1)
        classes: Labels = f.argmax(axis=1)
        return classes


def harmonic(
    adjacency: scipy.sparse.csr_array, labelled: Labels, values: Floats, *, elsewhere: Floats
) -> Floats:
    """Returns the function that is `values` on `labelled` and the neighbours' mean elsewhere.

    `elsewhere` is the value of nodes in components without a labelled node.
    """
    _, component = connected_components(adjacency, directed=False)
    f = np.tile(elsewhere, (adjacency.shape[0], 1))
    f[labelled] = values
    # In a component with a label the Laplacian below is positive definite, as `cg` requires.
    free = np.isin(component, component[labelled])
    free[labelled] = False
    unknown = np.flatnonzero(free)
    if len(unknown) == 0:
        return f
    degree = scipy.sparse.diags_array(adjacency.sum(axis=1)[unknown])
    laplacian = (degree - adjacency[unknown][:, unknown]).tocsr()
    jacobi = scipy.sparse.diags_array(1 / laplacian.diagonal())
    given = adjacency[unknown][:, labelled] @ values
    for column in range(values.shape[1]):
        solved, status = scipy.sparse.linalg.cg(
            laplacian, given[:, column], rtol=TOLERANCE, M=jacobi, maxiter=10_000
        )
        if status != 0:
            raise TrainingError("label-propagation: the linear solver did not converge")
        f[unknown, column] = solved
    return f


BASELINE = Baseline(
    "label-propagation",
    "Label propagation",
    LabelPropagation,
    paper="Zhu et al., Semi-Supervised Learning Using Gaussian Fields and Harmonic Functions, 2003",
    deterministic=True,
    weighted=True,
)
