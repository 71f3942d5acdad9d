"""What a report shows of embeddings in shards and of a store in parts, a block at a time.

Edges are read part by part and block by block. What needs all of them at once, or a batch of
training, is left out: connected components and alignment.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.answers.shards import shards_of_run
from graphcl.errors import GraphError, require
from graphcl.evaluation import linear_probe
from graphcl.evaluation.unsupervised import sampled_rows
from graphcl.graphs.nodes import Nodes
from graphcl.partitioned.embeddings import ShardedEmbeddings
from graphcl.runs.results import GraphFacts
from graphcl.store.header import read_store
from graphcl.store.reader import open_part

SCORED_NODES = 200_000  # labelled nodes that the probe sees at most
ENTRIES = 1 << 21  # of edges, looked at at a time
LEFT_OUT = "Connected components and alignment are left out: they need the whole graph in memory."
Array = npt.NDArray[Any]


class Sharded:
    """Embeddings in shards, with their store in parts.

    Attributes:
        z: the embeddings, on disk.
        nodes: ids, labels, split and degrees.
        scored: rows of the labelled nodes that the probe sees, ascending.
    """

    z: ShardedEmbeddings
    nodes: Nodes
    scored: Array

    def __init__(self, run: Path, embeddings: Path, graph: Any, *, seed: int) -> None:
        """Opens and checks both.

        Raises:
            ParameterError: `graph` is not a store in parts.
            RunError: the shards are damaged, of another model or of other parts.
        """
        given = str(graph) if isinstance(graph, str | Path) else None
        why = "the store in parts that --embeddings are of"
        require(given is not None, "report", "--graph", why, graph)
        self.z, self.nodes = shards_of_run(run, embeddings, given, "report")
        self._path = Path(str(given))
        self._parts = read_store(self._path)
        y = self.nodes.classes
        labelled = np.zeros(0, np.int64) if y is None else np.flatnonzero(y >= 0)
        self.scored = labelled[sampled_rows(len(labelled), seed, SCORED_NODES)]

    def notes(self) -> list[str]:
        """Returns what the page says about this."""
        found = [f"The embeddings are those in {self.z.path.name}. {LEFT_OUT}"]
        y = self.nodes.classes
        if y is not None and len(self.scored) < int((y >= 0).sum()):
            found.append(f"The probe sees {len(self.scored):,} of the labelled nodes.")
        return found

    def result(self, result: dict[str, Any], labelled: Any) -> dict[str, Any]:
        """Returns what the run says of its training, with facts of these parts and their probe.

        `labelled` is a graph of the labels of the scored nodes, or None.
        """
        facts = GraphFacts(
            self._parts.name,
            str(self._path),
            self._parts.num_nodes,
            self._parts.num_edges,
            self._parts.num_features,
        )
        of_others = ("effective_rank", "mean_cosine", "probe", "probe_skipped", "warnings")
        kept = {key: value for key, value in result.items() if key not in of_others}
        kept |= {"graph": asdict(facts), "probe": None, "probe_skipped": "no node has a label"}
        if labelled is not None:
            try:
                kept["probe"] = asdict(linear_probe(self.z[self.scored], labelled))
            except GraphError as error:
                kept["probe_skipped"] = str(error)
        return kept

    def homophily(self) -> float | None:
        """Returns the share of edges within one class, among edges between labelled nodes."""
        y = self.nodes.classes
        if y is None:
            return None
        same = both = 0
        for _, first, degree, indices in self._blocks():
            source = np.repeat(y[first : first + len(degree)], degree)
            target = y[indices]
            known = (source >= 0) & (target >= 0)
            same += int((source == target)[known].sum())
            both += int(known.sum())
        return same / both if both else None

    def among(self, rows: Array) -> scipy.sparse.csr_array:
        """Returns the edges among some nodes, which are numbered as in `rows`, ascending."""
        place = np.full(self._parts.num_nodes, -1, np.int32)
        place[rows] = np.arange(len(rows))
        found: list[tuple[Array, Array]] = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
        for _, first, degree, indices in self._blocks():
            source = np.repeat(place[first : first + len(degree)], degree)
            target = place[indices]
            inside = (source >= 0) & (target >= 0)
            found.append((source[inside], target[inside]))
        source, target = (np.concatenate(side) for side in zip(*found, strict=True))
        ones = np.ones(len(source), np.int8)
        shape = (len(rows), len(rows))
        edges = scipy.sparse.csr_array((ones, (source, target)), shape=shape)
        edges.sort_indices()
        return edges

    def _blocks(self) -> Any:
        """Yields the part, the first node, the degrees and the neighbours of nodes in a row."""
        for number in range(len(self._parts)):
            whole = open_part(self._parts, number)
            whole.check()
            part = whole.plain
            indptr, indices = part.fields["indptr"], part.fields["indices"]
            begin, own = 0, len(indptr) - 1
            while begin < own:
                limit = int(indptr[begin]) + ENTRIES
                end = max(begin + 1, int(np.searchsorted(indptr, limit, side="right")) - 1)
                bounds = np.asarray(indptr[begin : end + 1])
                block = np.asarray(indices[bounds[0] : bounds[-1]])
                yield number, part.nodes.start + begin, np.diff(bounds), block
                begin = end
