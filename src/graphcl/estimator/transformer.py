"""What scikit-learn expects of a transformer: names of columns, tables out, tags."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.exceptions
import sklearn.utils
from sklearn.base import BaseEstimator

from graphcl.embedding import Chosen
from graphcl.encoders import LayeredEncoder
from graphcl.errors import GraphCLError, require
from graphcl.estimator.fitted import FITTED, Fitted
from graphcl.evaluation.splits import nodes_to_choose_by, validation_score
from graphcl.graphs.collection import GraphCollection, as_graphs
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes


class NotFittedError(GraphCLError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """`transform` or `save` was called before `fit`."""


class SklearnTransformer(BaseEstimator):  # type: ignore[misc]
    """The part of the estimator that exists for scikit-learn."""

    _fitted: Fitted | None = None

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:  # noqa: ARG002
        """Returns the names of an embedding's columns: ``graphcl0`` and so on.

        Args:
            input_features: ignored; for scikit-learn.
        """
        fitted = self._require_fitted("get_feature_names_out")
        width = fitted.components.recipe.dim
        if isinstance(fitted.encoder, LayeredEncoder):
            width = fitted.encoder.width
        return np.array([f"graphcl{column}" for column in range(width)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Chooses what `transform` returns: ``default`` arrays, or ``pandas`` or ``polars`` tables.

        A pandas table has the graph's node ids for its index; Polars knows no index.
        """
        if transform is not None:
            known = ("default", "pandas", "polars")
            require(transform in known, "set_output", "transform", ", ".join(known), transform)
            self._sklearn_output_config = {"transform": transform}
        return self

    def __sklearn_tags__(self) -> Any:
        """Tells scikit-learn that X is a graph, or a list of graphs, and no table of numbers."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = "transformer"
        tags.transformer_tags = sklearn.utils.TransformerTags(preserves_dtype=[])
        tags.input_tags.two_d_array = False
        tags.target_tags.required = False
        tags.no_validation = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Says whether `fit` was called, for scikit-learn's `check_is_fitted`."""
        return self._fitted is not None

    def __getattr__(self, name: str) -> Any:
        """Returns what `fit` has found: the attributes that end in an underscore."""
        found = FITTED.get(name)
        if found is None or self._fitted is None or found(self._fitted) is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return found(self._fitted)

    def _require_fitted(self, verb: str) -> Fitted:
        if self._fitted is None:
            raise NotFittedError(f"GraphCL: call fit before {verb}")
        return self._fitted


def as_table(
    model: SklearnTransformer, z: npt.NDArray[np.float32], graph: Graph | Nodes, nodes: Chosen
) -> Any:
    """Returns the embeddings of some `nodes` (None: all) as the model's `set_output` asks.

    That is an array, or a pandas or Polars table; a pandas table has the node ids for its index.
    """
    asked = getattr(model, "_sklearn_output_config", {}).get("transform")
    kind = asked or sklearn.get_config()["transform_output"]
    names = [f"graphcl{column}" for column in range(z.shape[1])]
    if kind == "pandas":
        import pandas

        ids = (
            None
            if graph.node_ids is None
            else graph.node_ids[slice(None) if nodes is None else nodes]
        )
        return pandas.DataFrame(z, index=ids, columns=names)
    if kind == "polars":
        import polars

        return polars.DataFrame(z, schema=names, orient="row")
    return z


def probe_scorer(model: Any, graphs: Any, y: None = None) -> float:  # noqa: ARG001
    """Returns the score by which `graphcl tune` ranks, mean over `graphs`; higher is better.

    It is the probe's score on validation nodes: see `graphcl.evaluation.splits.metric_of`.

    Test nodes are not used: a search that chose by them would leave no fair score to report. For
    `GridSearchCV`, X is a list of graphs, and each fold holds some of them out::

        GridSearchCV(GraphCL(), {"temperature": [0.5, 0.8]}, scoring=probe_scorer, cv=3).fit(graphs)

    To search with one graph, use a fold that trains and scores on it: ``fit([graph])`` with
    ``cv=[([0], [0])]``. Only the score reads its labels.

    Args:
        model: a fitted estimator.
        graphs: a labelled graph or several, which the model may have been trained on.
        y: ignored; labels belong to the graphs.
    """
    given = as_graphs(graphs)
    each = given.graphs if isinstance(given, GraphCollection) else (given,)
    scores = []
    for graph in each:
        nodes, labels, train = nodes_to_choose_by(graph)
        scores.append(validation_score(model.transform(graph)[nodes], labels, train))
    return sum(scores) / len(scores)
