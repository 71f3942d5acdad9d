"""What stands beside a node table: tags, and vectors.

Their ids are read before nodes are numbered, and their features are made after.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular.columns import IdColumn
from graphcl.tabular.duck import Duck
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import Preparation
from graphcl.tabular.sources import Source
from graphcl.tabular.tags import TagFeatures, TagTable
from graphcl.tabular.vectors import VectorFeatures, load_ids, open_vectors, place_vectors


class Beside:
    """Tags and vectors of the nodes, as far as there are any.

    Args:
        duck: the session.
        options: the caller's options.
        open_table: opens a table under a role.
        id_column: the node table's column of ids; empty without one.

    Attributes:
        tags: the long table, or None.
        ids: the columns of ids, of tags and of vectors.
    """

    def __init__(
        self,
        duck: Duck,
        options: TableOptions,
        open_table: Callable[[Any, str], Source],
        id_column: str,
    ) -> None:
        self._duck, self._options = duck, options
        self.tags: TagTable | None = None
        self.ids: list[IdColumn] = []
        self._vector_ids: IdColumn | None = None
        for name in ("tags", "vectors"):
            _check(name, options)
        if options.tags is not None:
            source = open_table(options.tags, "tags")
            self.tags = TagTable(duck, source, options, id_column or None)
            self.ids.append(self.tags.ids)
        elif options.tag_columns and options.preparation is None:
            raise GraphError("--tag-columns: there are no tags; pass --tags FILE")
        given = options.vector_ids
        if given is not None:
            if options.vectors is None:
                raise GraphError("--vector-ids: there are no vectors; pass --vectors FILE.npy")
            rows = len(open_vectors(options.vectors)[1])
            array = isinstance(given, list | tuple | np.ndarray) or str(given).endswith(".npy")
            listed = None if array else open_table(given, "vector-ids")
            self._vector_ids = load_ids(duck, given, rows, listed)
            self.ids.append(self._vector_ids)

    def features(
        self, kind: str, nodes: Source | None, training: npt.NDArray[np.bool_] | None
    ) -> tuple[TagFeatures | None, VectorFeatures | None]:
        """Returns the features of tags and of vectors, once nodes are numbered.

        Args:
            kind: the type in which ids are compared.
            nodes: the node table, or None.
            training: whether each node is one that statistics are taken from; None means all are.
        """
        options, tags, vectors = self._options, None, None
        known = options.preparation or Preparation(())
        if self.tags is not None:
            tags = self.tags.join(kind, known.tags, training)
        if options.vectors is not None:
            vectors = place_vectors(
                self._duck,
                options.vectors,
                self._vector_ids,
                kind,
                order=nodes,
                strict=options.strict,
            )
            if not vectors.problems:
                vectors.look(known.vectors, training)
        return tags, vectors


def _check(name: str, options: TableOptions) -> None:
    """Refuses what does not go together, and what a model was not trained with."""
    option, given, prepared = f"--{name}", getattr(options, name) is not None, options.preparation
    if options.features == "structural":
        if given:
            raise GraphError(
                f"{option}: --features structural leaves {name} out; pass --features both"
            )
        return
    trained = prepared is not None and getattr(prepared, name) is not None
    if trained and not given:
        raise GraphError(f"the model was trained with {name}; pass {option} FILE")
    if given and not trained and prepared is not None:
        raise GraphError(f"{option}: the model was trained without {name}; leave {option} out")
