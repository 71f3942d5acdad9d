"""`graphcl.Run`: what a training left in a folder, and everything one asks of it.

Nothing here imports torch or a graph until an answer needs it: similar nodes take a second.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError, counted, option, require
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.nodes import lacks_embeddings, read_nodes, run_types, type_folder
from graphcl.runs.results import read_result
from graphcl.settings import LINKS_BY
from graphcl.store.columns import Ids
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:  # each is imported by the answer that needs it
    from graphcl.answers.grouping import Groups
    from graphcl.answers.linking import LinkEvaluation, Links
    from graphcl.answers.prediction import KnownLabels, Predictions
    from graphcl.answers.similar import Neighbours
    from graphcl.estimator import GraphCL
    from graphcl.graphs.graph import Graph
    from graphcl.graphs.relation import Relation
    from graphcl.opening import AnyGraph
    from graphcl.updating.run import Update

Array = npt.NDArray[Any]
LEARN = ("all", "train")


class Run:
    """What a training left, and everything one asks of it.

    A run keeps the model, the embeddings, and the ids and labels of its nodes. It names the graph
    that it was trained on; one that was updated keeps it.

    Args:
        path: the folder that `graphcl train` or `GraphCL.save` wrote.
        graph: the graph that it was trained on, where the run does not find it itself: a `Graph`,
            or whatever `open_graph` takes. With `embeddings`, the path of their store in parts.
        embeddings: the path of a folder of shards, which `graphcl embed RUN PARTS` wrote; they are
            asked in place of those in the run, and stay on disk.
        device: where a model computes: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tables: options of `read_tables` by which `graph` is read, if it names tables.

    Raises:
        RunError: there is no run, or it is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        graph: Any = None,
        embeddings: str | Path | None = None,
        device: str = "auto",
        **tables: Any,
    ) -> None:
        self.path = versions.run_root(Path(path))
        self.device = device
        self._given, self._tables = graph, TableOptions(**tables)
        self._shards = None if embeddings is None else Path(embeddings)
        self._kept: dict[tuple[str, Path], Any] = {}
        self.read_graph: Callable[[Path], AnyGraph] = self._read_graph
        runs.read_config(self.folder, baselines=True)

    def reading(self, tables: TableOptions, read_graph: "Callable[[Path], AnyGraph]") -> Self:
        """Sets how the graph is read, as a command does."""
        self._tables, self.read_graph = tables, read_graph
        return self

    def __repr__(self) -> str:
        about = read_result(self.folder) if (self.folder / runs.RESULT).is_file() else {}
        graph, probe = about.get("graph") or {}, about.get("probe") or {}
        facts = [str(graph.get("name", ""))] if graph.get("name") else []
        facts += [counted(graph["nodes"], "node")] if "nodes" in graph else []
        if self.types:
            facts.append(f"types {', '.join(self.types)}")
        if probe.get("accuracy") is not None:
            facts.append(f"probe accuracy {probe['accuracy']:.3f}")
        facts.append(f"version {self.version}")
        return f"Run({str(self.path)!r}: {', '.join(facts)})"

    @property
    def folder(self) -> Path:
        """The folder of the version that is in use."""
        return versions.current_run(self.path)

    @property
    def version(self) -> int:
        """The number of the version that is in use; 0 is the training."""
        return versions.current_number(self.path)

    @property
    def versions(self) -> list[versions.Version]:
        """All versions, the training first."""
        return versions.versions(self.path)

    @property
    def types(self) -> list[str]:
        """The types of the graph's nodes; none for a plain graph."""
        return run_types(self.folder)

    @property
    def graph(self) -> "AnyGraph":
        """The graph that the run was trained on; of a version, its own.

        Raises:
            RunError: it cannot be read, it has changed, or it is not read on the run's word.
        """
        graph: AnyGraph = self._once("graph", self.read_graph)
        return graph

    @property
    def model(self) -> "GraphCL":
        """The trained model."""
        from graphcl.estimator import GraphCL

        model: GraphCL = self._once(
            "model", lambda folder: GraphCL.load(folder, device=self.device)
        )
        return model

    @property
    def embeddings(self) -> Any:
        """The embeddings, ``[nodes, dim]``; of a graph with types, such rows by type.

        They are mapped from files and read-only. Rows are in the order of the version's graph:
        nodes that stayed, then new ones.
        """
        if not self.types:
            return self.rows()[0]
        return {name: self.rows(name)[0] for name in self.types}

    def nodes(self, node_type: str | None = None) -> Nodes:
        """Returns what the run keeps of its nodes: ids, labels, split and degrees.

        Args:
            node_type: of a graph with types: which; not needed if it has one.
        """
        return self.rows(node_type)[1]

    def _once(self, what: str, make: Callable[[Path], Any]) -> Any:
        """Returns something of the version in use, which is made once."""
        key = what, self.folder
        if key not in self._kept:
            self._kept[key] = make(self.folder)
        return self._kept[key]

    def _read_graph(self, folder: Path) -> "AnyGraph":
        from graphcl.graphs.collection import as_graphs
        from graphcl.runs.graph import graph_fingerprint, read_run_graph

        if self._given is None or isinstance(self._given, str | Path):
            given = None if self._given is None else str(self._given)
            return read_run_graph(folder, given, self._tables)
        graph = as_graphs(self._given)
        expected = runs.read_config(folder, baselines=True).origin.fingerprint
        if expected and versions.own_graph(folder) is None and graph_fingerprint(graph) != expected:
            raise RunError(f"{self.path}: graph is not the one that the run was trained on")
        return graph

    def one_graph(self, what: str) -> "Graph":
        """Returns the graph, if the run has one.

        Raises:
            RunError: it has several; `what` is of one.
        """
        from graphcl.graphs.graph import Graph

        if not isinstance(self.graph, Graph):
            raise RunError(f"{self.path}: has {len(self.graph.graphs)} graphs; {what} of one")
        return self.graph

    def type_folder(
        self, node_type: str | None = None, fits: Callable[[Nodes], bool] = lambda _: False
    ) -> Path:
        """Returns the folder with the embeddings of a type; that of a plain graph is the run's.

        Args:
            node_type: the type, or None. Then it is the only one, or the only one that fits.
            fits: says whether the nodes of a type may be meant.

        Raises:
            RunError: there is no such type, or nothing says which is meant.
        """
        names = self.types
        if node_type is not None or len(names) < 2:
            return type_folder(self.folder, node_type or next(iter(names), None))
        folders = [type_folder(self.folder, name) for name in names]
        read = [(folder, read_nodes(folder)) for folder in folders]
        likely = [folder for folder, nodes in read if nodes is not None and fits(nodes)]
        if len(likely) == 1:
            return likely[0]
        raise RunError(
            f"{self.path}: its graph has several types ({', '.join(names)}); name one: "
            f"--type {names[0]}"
        )

    def type_of(self, folder: Path) -> str | None:
        """Returns the type whose folder this is; None for the run itself."""
        named = (one for one in self.types if type_folder(self.folder, one) == folder)
        return next(named, None)

    def rows(
        self,
        node_type: str | None = None,
        fits: Callable[[Nodes], bool] = lambda _: False,
        *,
        owner: str = "Run",
    ) -> tuple[Any, Nodes]:
        """Returns the embeddings of a type, and what the run keeps of its nodes.

        Of a run over parts, which keeps none yet, the graph is embedded first. Otherwise the graph
        is read only if it was given, or the run has no `nodes.npz`.

        Raises:
            RunError: the run is damaged, has no embeddings, or they do not fit its nodes.
        """
        from graphcl.runs.nodes import describe_nodes

        folder = self.type_folder(node_type, fits)
        kind = self.type_of(folder)
        if self._shards is not None:
            from graphcl.answers.inputs import shards_of_run

            tables = not self._tables.given()
            require(tables, owner, "--graph", "a store in parts, not tables", self._given)
            return shards_of_run(self.folder, self._shards, self._given, owner, node_type=kind)
        given = self._given is not None or bool(self._tables.given())
        if lacks_embeddings(self.folder):
            from graphcl.training_run import keep_embeddings

            keep_embeddings(self.folder, self.graph)
            given = False  # what the run keeps is of this graph
        if kind is not None:
            what = "left out: the run has the nodes of its types"
            require(not given, owner, "--graph", what, self._given)
        z, nodes = runs.read_embeddings(folder), None if given else read_nodes(folder)
        if nodes is None and kind is not None:
            raise RunError(f"{folder}: has no nodes.npz; train again")
        nodes = nodes or describe_nodes(self.graph)
        if nodes.num_nodes != len(z):
            raise RunError(f"{self.path}: {len(z)} embeddings for {nodes.num_nodes} nodes")
        return z, nodes

    def predict(
        self,
        labels: Any = None,
        *,
        nodes: str = "unlabelled",
        learn: str = "all",
        node_type: str | None = None,
        seed: int = 0,
    ) -> "Predictions":
        """Returns labels and calibrated probabilities of nodes, learned from the labelled ones.

        Args:
            labels: as `graphcl.predict` takes them; None takes those of the run.
            nodes: ``unlabelled``, or ``all``.
            learn: from ``all`` labels; or from those of ``train`` and validation nodes: the error
                on the test nodes is then in `Predictions.test`.
            node_type: of a graph with types: which; None is the only one with labels.
            seed: decides the folds.

        Raises:
            RunError: the run has no labels, or no split to learn from.
            GraphError: the labels do not fit the nodes.
        """
        from graphcl.answers.prediction import NODES, known_labels, predict_known

        require(learn in LEARN, "predict", "learn", " or ".join(LEARN), learn)
        require(nodes in NODES, "predict", "nodes", " or ".join(NODES), nodes)
        z, own = self.rows(node_type, _is_labelled, owner="predict")
        truth = self._own_labels(own) if labels is None else known_labels(labels, own.ids)
        known = truth
        if learn == "train":
            if own.split_codes is None:
                raise RunError(
                    f"{self.path}: has no split; --learn train needs train and test nodes"
                )
            known = truth.only(np.isin(own.split_codes, (1, 2)))
        elif known.known.all() and nodes != "all":
            hint = "; --learn train hides those of test nodes" * (own.split_codes is not None)
            raise RunError(
                f"{self.path}: all {len(z):,} nodes have a label; --all predicts them too{hint}"
            )
        found = predict_known(z, own.ids, known, nodes=nodes, seed=seed)
        return replace(found, test=found.score(truth)) if learn == "train" else found

    def _own_labels(self, nodes: Nodes) -> "KnownLabels":
        import shlex

        from graphcl.answers.prediction import known_labels
        from graphcl.store.header import is_parts

        if nodes.y is None:
            trained = runs.read_config(self.folder, baselines=True).origin.graph
            parted = bool(trained) and is_parts(Path(trained))
            hint = f", or pass --graph {shlex.quote(trained)}" if parted else ""
            raise RunError(
                f"{self.path}: has no labels; give some with --labels FILE (columns: id and label)"
                f"{hint}"
            )
        return known_labels(nodes.y.astype(np.int64), nodes.ids, nodes.class_names)

    def cluster(
        self,
        count: int | None = None,
        *,
        method: str = "kmeans",
        least: int | None = None,
        node_type: str | None = None,
        seed: int = 0,
    ) -> "Groups":
        """Groups nodes by their embeddings.

        Args:
            count: number of groups of k-means; None chooses it by the silhouette.
            method: ``kmeans``, or ``hdbscan``, which finds the number itself.
            least: the smallest group of HDBSCAN.
            node_type: of a graph with types: which.
            seed: decides samples and first centres.
        """
        from graphcl.answers.grouping import cluster

        z, nodes = self.rows(node_type, owner="cluster")
        found = cluster(np.asarray(z), count, method=method, least=least, seed=seed)
        return replace(found, ids=nodes.ids[:])

    def neighbors(
        self,
        nodes: Any = None,
        k: int = 10,
        *,
        rows: Any = None,
        node_type: str | None = None,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> "Neighbours":
        """Returns the nodes whose embeddings are most similar to those of some nodes, by cosine.

        An index is built at the first call and kept in the run. Embeddings in shards are compared
        block by block, without an index.

        Args:
            nodes: an id or several.
            k: how many of each.
            rows: row numbers, in place of ids.
            node_type: of a graph with types: which; None is the only one with these ids.
            on_note: is told when an index is built.

        Raises:
            RunError: an id is unknown.
        """
        from graphcl.answers.similar import find_neighbours, stored_index

        require(k >= 1, "neighbors", "k", "at least 1", k)
        fits = partial(_has_all, wanted=nodes)
        z, own = self.rows(node_type, fits, owner="neighbors")
        places = self._places(own, nodes, rows)
        index, why = None, ""
        if self._shards is None:
            index, why = stored_index(self.type_folder(node_type, fits), z)
        if why:
            on_note(f"built an index of {counted(len(z), 'node')} ({why})")
        return find_neighbours(z, own.ids, places, k, index)

    def links(
        self,
        nodes: Any = None,
        *,
        rows: Any = None,
        pairs: Any = None,
        k: int = 20,
        by: str = LINKS_BY[0],
        relation: str | None = None,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> "Links":
        """Returns likely links that the graph lacks, or the scores of given pairs.

        Args:
            nodes: ids; the k most likely missing links of each are returned. None: of the graph.
            rows: row numbers, in place of ids.
            pairs: pairs of ids to score, ``[n, 2]``.
            k: number of missing links, of each node or in all.
            by: what ranks: ``embeddings``, ``common_neighbours`` or ``adamic_adar``.
            relation: of a graph with types: which; not needed if it has one. Nodes are sources.
            on_note: is told when an index is built.

        Raises:
            RunError: an id is unknown, there are several graphs, or several relations.
        """
        from graphcl.answers.linking import (
            RelationScores,
            missing_links,
            relation_links,
            score_pairs,
        )
        from graphcl.answers.similar import stored_index
        from graphcl.evaluation.nearest import EXACT_ROWS

        require(by in LINKS_BY, "links", "by", " or ".join(LINKS_BY), by)
        require(k >= 1, "links", "k", "at least 1", k)
        everywhere = nodes is None and rows is None
        if self.types:
            require(by == LINKS_BY[0], "links", "by", f"{LINKS_BY[0]} for a typed graph", by)
            one = self.relation(relation)
            ends = [self.rows(kind, owner="links") for kind in (one.source, one.target)]
            z = {kind: end[0] for kind, end in zip((one.source, one.target), ends, strict=True)}
            scores = RelationScores.of(z, one, self.one_graph("links are"))
            of = None if everywhere else self._places(ends[0][1], nodes, rows)
            ids = ends[0][1].ids, ends[1][1].ids
            return relation_links(scores, ids, pairs=pairs, rows=of, k=k)
        require(relation is None, "links", "relation", "None for a plain graph", relation)
        rows_z, own = self.rows(owner="links")
        if pairs is not None:
            graph = None if by == LINKS_BY[0] else self.one_graph("links are")
            return score_pairs(rows_z, own.ids, pairs, graph, by=by)
        graph, index = self.one_graph("links are"), None
        if len(rows_z) > EXACT_ROWS and by == LINKS_BY[0]:
            index, why = stored_index(self.folder, rows_z)
            if why:
                on_note(f"built an index of {counted(len(rows_z), 'node')} ({why})")
        of = None if everywhere else self._places(own, nodes, rows)
        return missing_links(rows_z, own.ids, graph, rows=of, k=k, index=index, by=by)

    def relation(self, name: str | None = None) -> "Relation":
        """Returns a relation of the graph; not named, the only one.

        Raises:
            RunError: there are several, and none is named.
        """
        graph = self.one_graph("links are")
        if name is not None:
            return graph.relation(name)
        if len(graph.relations) != 1:
            names = ", ".join(":".join(key) for key in graph.relations)
            first = next(iter(graph.relations))[1]
            raise RunError(
                f"{self.path}: its graph has several relations ({names}); name one: "
                f"{option('relation', first)}"
            )
        return graph.only_relation

    def evaluate_links(
        self,
        *,
        share: float = 0.1,
        negatives: int = 100,
        relation: str | None = None,
        seed: int = 0,
    ) -> "LinkEvaluation":
        """Says what link scores are worth on this graph; see `graphcl.evaluate_links`."""
        from graphcl.answers.linking import evaluate_links

        name = ":".join(self.relation(relation).key) if self.types else None
        how: Any = {"share": share, "negatives": negatives, "seed": seed}
        return evaluate_links(self.model, self.one_graph("links are"), relation=name, **how)

    def update(self, **changes: Any) -> "Update":
        """Brings the run up to date with a graph that has changed: a new version of the run.

        It takes what `graphcl.updating.run.update` takes: tables of `nodes` and `edges`, what is
        removed (`remove_nodes`, `remove_edges`), and `retrain`.
        """
        from graphcl.updating.run import update

        given = self._given
        return update(self.path, graph=given, device=self.device, **changes)

    def rollback(self, version: int | None = None) -> int:
        """Makes an earlier version the one in use, by default the one before; returns it."""
        return versions.rollback(self.path, version)

    def _places(self, nodes: Nodes, ids: Any, rows: Any) -> Array:
        """Returns the rows of some nodes, which are given by ids or by rows; None are all."""
        found = Ids(nodes.ids).chosen(ids, rows, str(self._shards or self.path), RunError)
        every = np.arange(nodes.num_nodes)
        return found if isinstance(found, np.ndarray) else every[found or slice(None)]


def _is_labelled(nodes: Nodes) -> bool:
    return nodes.y is not None


def _has_all(nodes: Nodes, wanted: Any) -> bool:
    given = [wanted] if isinstance(wanted, str) or np.ndim(wanted) == 0 else wanted
    return set(map(str, given)) <= set(map(str, nodes.ids.tolist()))
