"""`graphcl.Run`: what a training left in a folder, and everything one asks of it.

Nothing here imports torch or a graph until an answer needs it: similar nodes take a second.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from graphcl.answers.inputs import columns_of_run, shards_of_run
from graphcl.answers.similar import Neighbours, find_neighbours, stored_index
from graphcl.arrays import Array
from graphcl.errors import RunError, counted, option, require
from graphcl.evaluation.unsupervised import EXACT_ROWS
from graphcl.exporting import export_run
from graphcl.files.remote import local
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.files import read_result
from graphcl.runs.nodes import (
    describe_nodes,
    has_all,
    is_labelled,
    lacks_embeddings,
    read_nodes,
    run_types,
    type_folder,
)
from graphcl.runs.versions import KEEP, of_one_version
from graphcl.settings import LINKS_BY
from graphcl.store.columns import Ids
from graphcl.store.header import is_parts
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:  # each is imported by the answer that needs it
    from graphcl.answers.grouping import Groups
    from graphcl.answers.linking import LinkEvaluation, Links
    from graphcl.answers.predicted import Estimates, Predictions
    from graphcl.estimator.model import GraphCL
    from graphcl.graphs.graph import Graph
    from graphcl.graphs.relation import Relation
    from graphcl.opening import AnyGraph
    from graphcl.reporting.page import Page
    from graphcl.updating.run import Update


class Run:
    """What a training left, and everything one asks of it.

    A run keeps the model, the embeddings, and the ids and labels of its nodes. It names the graph
    that it was trained on; one that was updated keeps it.

    Args:
        path: the folder that `graphcl train` or `GraphCL.save` wrote. That of one of its versions
            stands for this version, whichever is in use.
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
        self._version = None if self.path == Path(path) else Path(path)
        self.device = device
        self._given, self._tables = local(graph), TableOptions.named("Run", local(tables))
        self._shards = Path(local(embeddings)) if embeddings else None
        self._given_of: Path | None = None  # the version that the graph was given for
        self._kept: dict[tuple[Any, ...], Any] = {}
        self.read_graph: Callable[[Path], AnyGraph] = self._read_graph
        runs.read_config(self.path, baselines=True)

    def reading(self, tables: TableOptions, read_graph: "Callable[[Path], AnyGraph]") -> Self:
        """Sets how the graph is read, as a command does; all it asks is of the version in use."""
        parts = self._shards is None or not tables.given()
        require(parts, str(self.path), option("graph"), "a store in parts, not tables", self._given)
        self._tables, self.read_graph = tables, read_graph
        with suppress(RunError):  # whoever asks for an answer is told what is damaged
            self._version = self.folder
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
        return f"Run({str(self.path)!r}: {', '.join([*facts, f'version {self.version}'])})"

    @property
    def folder(self) -> Path:
        """The folder of the version that is in use, or that was named."""
        return self._version or versions.current_run(self.path)

    @property
    def version(self) -> int:
        """The number of the version that is in use, or that was named; 0 is the training."""
        if self._version is None:
            return versions.current_number(self.path)
        return 0 if self._version == self.path else int(self._version.name)

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
        return self._once("graph", self.read_graph)  # type: ignore[no-any-return]

    @property
    def model(self) -> "GraphCL":
        """The trained model."""
        return self._once("model", lambda _: self._new_model())  # type: ignore[no-any-return]

    def _new_model(self, verbose: bool | None = None) -> "GraphCL":
        from graphcl.estimator.model import GraphCL

        return GraphCL.read_from(self.folder, device=self.device).set_params(verbose=verbose)

    @property
    @of_one_version
    def embeddings(self) -> Any:
        """The embeddings, ``[nodes, dim]``; of a graph with types, such rows by type.

        They are mapped from files, in the order of the graph: nodes that stayed, then new ones.
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
        """Returns something of the version in use, made once, and again if it is trained anew."""
        key = (what, folder := self.folder, versions.mark_of(folder)[0])
        if key not in self._kept:
            for other in [one for one in self._kept if one[1:] != key[1:]]:
                self._kept.pop(other, None)
            self._kept[key] = make(folder)
        return self._kept[key]

    def _read_graph(self, folder: Path) -> "AnyGraph":
        from graphcl.graphs.collection import as_graphs
        from graphcl.runs.graph import check_graph, read_run_graph

        self._given_of = self._given_of or folder
        if self._given is None or folder != self._given_of:
            return read_run_graph(folder)
        if isinstance(self._given, str | Path):
            return read_run_graph(folder, str(self._given), self._tables)
        graph = as_graphs(self._given)
        check_graph(folder, graph)
        return graph

    def one_graph(self, folder: Path | None = None) -> "Graph":
        """Returns the graph of the version in use, or of another folder, if the run has one graph.

        Raises:
            RunError: it has several; what is asked is of one.
        """
        from graphcl.graphs.graph import Graph

        graph = self.graph if folder is None else self.read_graph(folder)
        if not isinstance(graph, Graph):
            raise RunError(f"{self.path}: has {len(graph.graphs)} graphs; this is asked of one")
        return graph

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
        read = [(name, read_nodes(self.folder, name)) for name in names]
        likely = [name for name, nodes in read if nodes is not None and fits(nodes)]
        if len(likely) == 1:
            return type_folder(self.folder, likely[0])
        which = "several of which have" if likely else "none of which alone has"
        raise RunError(
            f"{self.path}: its graph has several types ({', '.join(names)}), {which} what is "
            f"asked; name one: {option('node_type', names[0])}"
        )

    def type_of(self, folder: Path) -> str | None:
        """Returns the type whose folder this is; None for the run itself."""
        named = (one for one in self.types if type_folder(self.folder, one) == folder)
        return next(named, None)

    @of_one_version
    def rows(
        self, node_type: str | None = None, fits: Callable[[Nodes], bool] = lambda _: False
    ) -> tuple[Any, Nodes]:
        """Returns the embeddings of a type, and what the run keeps of its nodes.

        The graph is read only if it was given, or if the run lacks something.

        Raises:
            RunError: the run is damaged, has no embeddings, or they do not fit its nodes.
        """
        folder = self.type_folder(node_type, fits)
        kind = self.type_of(folder)
        if self._shards is not None:
            who = str(self.path)
            return shards_of_run(self.folder, self._shards, self._given, who, node_type=kind)
        given = self._given is not None or bool(self._tables.given())
        if self.keep_embeddings():
            given = False  # what the run keeps is of this graph
        z, nodes = runs.read_embeddings(folder), None if given else read_nodes(self.folder, kind)
        nodes = nodes or describe_nodes(self.graph, kind)
        if nodes.num_nodes != len(z):
            raise RunError(f"{self.path}: {len(z)} embeddings for {nodes.num_nodes} nodes")
        return z, nodes

    def keep_embeddings(self) -> bool:
        """Embeds the graph if a training over parts has left that to be done, and says whether."""
        if not lacks_embeddings(self.folder):
            return False
        from graphcl.training_run import keep_embeddings

        keep_embeddings(self.folder, self.graph, device=self.device)
        return True

    @of_one_version
    def predict(
        self,
        labels: Any = None,
        *,
        nodes: Any = "unlabelled",
        learn: str = "all",
        node_type: str | None = None,
        on_note: Callable[[str], object] = lambda _: None,
        **asked: Any,
    ) -> "Predictions | Estimates":
        """Returns labels and calibrated probabilities of nodes, learned from the labelled ones.

        Args:
            labels: as `graphcl.predict` takes them; None takes those of the run.
            nodes: ``unlabelled``, ``all``, or a list of ids.
            learn: from ``all`` labels; or from those of ``train`` and validation nodes: the error
                on the test nodes is then in `Predictions.test`.
            node_type: of a graph with types: which; None is the only one with labels.
            on_note: is told if the graph cannot be read; own columns then tell nothing.
            asked: `wanted`, `precision`, `cost`, `shares`, `using`, `rivals`, `why`, `level`,
                `label_kind` and `seed`, as of `graphcl.predict`.
        """
        from graphcl.answers.evidence import embedding_parts
        from graphcl.answers.prediction import predict_nodes
        from graphcl.runs.graph import if_readable

        z, own = self.rows(node_type, is_labelled)
        config = runs.read_config(self.folder, baselines=True)
        trained = config.origin.graph
        parted = bool(trained) and is_parts(Path(trained))
        hint = f", or pass {option('graph', trained)}" if parted else ""
        how: Any = {"nodes": nodes, "learn": learn, "hint": hint, **asked}
        graph: Any = None
        if not self._shards:
            graph, _ = if_readable(lambda: self.graph, self._given, on_note)
        if graph is not None:
            kind = self.type_of(self.type_folder(node_type, is_labelled))
            graph = graph if kind is None else graph.type(kind)
            how |= {"graph": graph, "parts": embedding_parts(config.recipe, graph.num_features)}
        return predict_nodes(z, own, labels, name=str(self.path), **how)

    @of_one_version
    def cluster(
        self,
        count: int | None = None,
        *,
        method: str = "kmeans",
        least: int | None = None,
        node_type: str | None = None,
        seed: int = 0,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> "Groups":
        """Groups nodes by their embeddings, and says what sets each group apart.

        Args:
            count: number of groups of k-means; None chooses it by the silhouette.
            method: ``kmeans``, or ``hdbscan``, which finds the number itself.
            least: the smallest group of HDBSCAN.
            node_type: of a graph with types: which.
            seed: decides samples and first centres.
            on_note: is told what profiles lack, and why.
        """
        from graphcl.answers.grouping import cluster

        z, nodes = self.rows(node_type)
        columns, why = columns_of_run(self, nodes, node_type, read=self._shards is None)
        if why:
            on_note(why)
        how: Any = {"method": method, "least": least, "seed": seed, "columns": columns}
        return replace(cluster(z, count, **how), ids=nodes.ids[:])

    @of_one_version
    def neighbors(
        self,
        nodes: Any = None,
        k: int = 10,
        *,
        rows: Any = None,
        node_type: str | None = None,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> Neighbours:
        """Returns the nodes whose embeddings are most similar to those of some nodes, by cosine.

        An index is built at the first call and kept in the run; shards are compared without one.

        Args:
            nodes: an id or several.
            k: how many of each.
            rows: row numbers, in place of ids.
            node_type: of a graph with types: which; None is the only one with these ids.
            on_note: is told when an index is built.

        Raises:
            RunError: an id is unknown.
        """
        require(k >= 1, "neighbors", "k", "at least 1", k)
        fits = partial(has_all, wanted=nodes)
        z, own = self.rows(node_type, fits)
        places = self._places(own, nodes, rows)
        index, why = None, ""
        if self._shards is None:
            index, why = stored_index(self.type_folder(node_type, fits), z)
        if why:
            on_note(f"built an index of {counted(len(z), 'node')} ({why})")
        return find_neighbours(z, own.ids, places, k, index)

    @of_one_version
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
            by: what ranks, as `graphcl.links` takes it.
            relation: of a graph with types: which; not needed if it has one. Nodes are sources.
            on_note: is told when an index is built, or that no model could be learned.
        """
        from graphcl.answers.linking import links

        z, index = self.embeddings, None
        if by in LINKS_BY[:2] and not self.types and pairs is None and len(z) > EXACT_ROWS:
            index, why = stored_index(self.folder, z)
            if why:
                on_note(f"built an index of {counted(len(z), 'node')} ({why})")
        alone = self._shards is not None or (by == LINKS_BY[1] and not self.types)
        graph: Any = self.nodes() if pairs is not None and alone else self.one_graph()
        model = None if alone or by != LINKS_BY[0] else self.model
        how: Any = {"nodes": nodes, "rows": rows, "relation": relation, "by": by, "index": index}
        found = links(z, pairs, graph=graph, k=k, model=model, **how)
        if found.by != by and len(found):
            on_note("too little of a graph to learn a model from; the embeddings rank alone")
        return found

    def relation(self, name: str | None = None) -> "Relation | None":
        """Returns the relation of a graph with types that links are of; None for a plain graph."""
        from graphcl.answers.linking import meant_relation

        if not self.types and name is None:
            return None
        return meant_relation(self.one_graph(), name)

    @of_one_version
    def evaluate_links(
        self,
        *,
        share: float = 0.1,
        negatives: int = 100,
        relation: str | None = None,
        after: Any = None,
        seed: int = 0,
        verbose: bool | None = None,
    ) -> "LinkEvaluation":
        """Says what links are worth: all is learned without some of them, and ranks them.

        Args:
            share: of the linked pairs that are removed, each among `negatives` that are not linked.
            negatives: how many.
            relation: of a graph with types: which; not needed if it has one.
            after: judge pairs that were linked after this day; nothing of it is seen in training.
            seed: decides which pairs are removed.
            verbose: show progress; None does so in terminals and notebooks.
        """
        from graphcl.answers.later import links_after
        from graphcl.answers.linking import evaluate_links

        model = self._new_model(verbose)
        how: Any = {"share": share, "negatives": negatives, "relation": relation, "seed": seed}
        if after is None:
            return evaluate_links(model, self.one_graph(), **how)
        return links_after(self.folder, model, after, **how)

    @of_one_version
    def predict_later(
        self, after: Any, *, node_type: str | None = None, seed: int = 0, verbose: Any = None
    ) -> "Predictions":
        """Predicts labels that came after a day by what was known: see `graphcl.answers.later`."""
        from graphcl.answers.later import predict_after

        model = self._new_model(verbose)
        return predict_after(self.folder, model, after, node_type=node_type, seed=seed)

    @of_one_version
    def report(
        self,
        out: str | Path | None = None,
        *,
        title: str = "",
        note: str = "",
        node_type: str | None = None,
        layout: str = "umap",
        without_graph: bool = False,
        seed: int = 0,
        overwrite: bool = False,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> "Page":
        """Writes one HTML file to send: a list to act on, groups, a map, and how they were made.

        It has the predictions, groups and links that commands were asked for, or finds groups now.

        Args:
            out: the file, `.html`; None is `report.html` in the run, which is replaced.
            title: of the page; empty is the graph's name.
            note: what you say to the reader, above all else.
            node_type: of a graph with types: which; None is the only one with labels.
            layout: of the map: ``umap``, or ``pca``, which is faster and needs no extra.
            without_graph: leave out what needs the graph, and the columns of nodes.
            seed: decides the map, groups and samples.
            overwrite: replace an existing file.
            on_note: is told what is left out, and why.
        """
        from graphcl.reporting.contents import Sharded
        from graphcl.reporting.page import check_page, write_page
        from graphcl.runs.graph import if_readable

        folder = self.type_folder(node_type, is_labelled)
        kind, target = self.type_of(folder), Path(folder / "report.html" if out is None else out)
        check_page(target, layout, overwrite=overwrite or out is None)
        graph, why, sharded = None, "it was not asked for", None
        if self._shards is not None:
            require(
                kind is None, "report", option("embeddings"), "left out for a typed graph", "it"
            )
            sharded = Sharded(self.folder, self._shards, self._given, seed=seed)
        elif not without_graph and (kind is None or not (self.folder / runs.RESULT).is_file()):
            hint = f"or do without: {option('without_graph', True)}"
            graph, why = if_readable(lambda: self.graph, self._given, on_note, hint=hint)
        if sharded is None:
            self.keep_embeddings()
        how: Any = {"layout": layout, "seed": seed, "why": why, "node_type": kind}
        read = not without_graph and sharded is None
        columns = partial(columns_of_run, self, node_type=kind, read=read)
        how |= {"title": title, "note": note, "columns": columns, "sharded": sharded}
        return write_page(target, self.folder, graph, **how)

    def export(
        self,
        to: str,
        out: str | Path | None = None,
        *,
        licence: str | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Writes the model for other programs, and returns the file or folder.

        Args:
            to: ``onnx``, ``torch`` (a `torch.export` program), or ``card``: a folder with weights,
                configuration and a model card.
            out: None is `model.onnx`, `model.pt2` or `card` in the working directory.
            licence: of the model, for the card: ``mit``, ``apache-2.0``, ``cc-by-4.0``, ….
            overwrite: replace what is there.

        Raises:
            RunError: it is there already.
        """
        return export_run(self.folder, to, out, licence=licence, overwrite=overwrite)

    def update(
        self,
        *,
        nodes: Any = None,
        edges: Any = None,
        remove_nodes: Any = None,
        remove_edges: Any = None,
        retrain: bool = False,
        epochs: int | None = None,
        keep: int = KEEP,
        verbose: bool = False,
        on_note: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> "Update":
        """Brings the run up to date with a graph that has changed; makes a new version of it.

        Those nodes whose L-hop surroundings changed are embedded again. The result is that of
        embedding the new graph whole, to 1e-6 of the largest. `rollback` goes back.

        Args:
            nodes: a table of new nodes, and of known ones whose features are replaced; columns that
                it lacks keep their values. Of a graph with types, tables by type; likewise
                `remove_nodes`, and `edges` and `remove_edges` by relation.
            edges: a list of new edges; of one that is there, the weight is replaced.
            remove_nodes: a table with a column of ids, or a list of ids.
            remove_edges: a list of edges to remove, before new ones are added.
            retrain: go on training, embed all nodes, and turn the new space to the old one.
            epochs: of `retrain`; None is a tenth of the training's.
            keep: how many versions are kept beside the training; the oldest are removed.
            verbose: show progress on stderr.
            on_note: is told what is noticed in the tables.
            options: as of `read_tables`; `until` alone reads the training's again, as of that day.
        """
        from graphcl.devices import resolve_device
        from graphcl.updating.run import update_run

        tables = [nodes, edges, remove_nodes, remove_edges]
        nodes, *others = [str(one) if isinstance(one, Path) else one for one in tables]
        return update_run(
            self.path,
            self.one_graph,
            TableOptions.named("update", {"nodes": nodes, **options}),
            edges=others[0],
            remove_nodes=others[1],
            remove_edges=others[2],
            retrain=retrain,
            epochs=epochs,
            keep=keep,
            device=resolve_device(self.device),
            verbose=verbose,
            on_note=on_note,
        )

    def rollback(self, version: int | None = None) -> int:
        """Makes an earlier version the one in use, by default the one before; returns it."""
        return versions.rollback(self.path, version)

    def _places(self, nodes: Nodes, ids: Any, rows: Any) -> Array:
        """Returns the rows of some nodes, which are given by ids or by rows; None are all."""
        found = Ids(nodes.ids).chosen(ids, rows, str(self._shards or self.path), RunError)
        return np.arange(nodes.num_nodes)[slice(None) if found is None else found]
