"""`graphcl.Run`: what a training left in a folder, and everything one asks of it.

Nothing here imports torch or a graph until an answer needs it: similar nodes take a second.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcl.answers.inputs import columns_of_run
from graphcl.answers.similar import Neighbours, find_neighbours, stored_index
from graphcl.errors import counted, option, require
from graphcl.evaluation.unsupervised import EXACT_ROWS
from graphcl.exporting import export_run
from graphcl.run_contents import RunContents
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.files import read_result
from graphcl.runs.nodes import (
    has_all,
    is_labelled,
)
from graphcl.runs.versions import KEEP, of_one_version
from graphcl.settings import LINKS_BY
from graphcl.store.header import is_parts
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:  # each is imported by the answer that needs it
    from graphcl.answers.grouping import Groups
    from graphcl.answers.linking import LinkEvaluation, Links
    from graphcl.answers.predicted import Estimates, Predictions
    from graphcl.graphs.relation import Relation
    from graphcl.reporting.page import Page
    from graphcl.updating.run import Update


class Run(RunContents):
    """What a training left, and everything one asks of it.

    A run keeps the model, the embeddings, the ids and labels of its nodes, and the graph that it
    was trained on; a dataset or a store it names.

    Args:
        path: the folder that `graphcl train` or `GraphCL.save` wrote. That of one of its versions
            stands for this version, whichever is in use.
        graph: the graph that it was trained on, where the run does not keep it: a `Graph`, or
            whatever `open_graph` takes. With `embeddings`, the path of their store in parts. For
            what reads the tables once more, as `evaluate_links(after=…)`, the list of edges.
        embeddings: the path of a folder of shards, which `graphcl embed RUN PARTS` wrote; they are
            asked in place of those in the run, and stay on disk.
        device: where a model computes: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        encoder: the class or module that the run was trained with, where that was the user's own.
        tables: options of `read_tables` by which `graph` is read, if it names tables.

    Raises:
        RunError: there is no run, or it is damaged.
    """

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

    @of_one_version
    def predict(
        self,
        labels: Any = None,
        *,
        nodes: Any = "unlabelled",
        learn: str = "all",
        node_type: str | None = None,
        without_graph: bool = False,
        **asked: Any,
    ) -> "Predictions | Estimates":
        """Returns labels and calibrated probabilities of nodes, learned from the labelled ones.

        Args:
            labels: as `graphcl.predict` takes them; None takes those of the run.
            nodes: ``unlabelled``, ``all``, or a list of ids.
            learn: from ``all`` labels; or from those of ``train`` and validation nodes: the error
                on the test nodes is then in `Predictions.test`.
            node_type: of a graph with types: which; None is the only one with labels.
            without_graph: predict from embeddings alone; own columns and neighbours tell nothing.
            asked: other arguments of `graphcl.predict`, see `answering.PREDICT_OPTIONS`.
        """
        from graphcl.answers.answering import check_asked
        from graphcl.answers.evidence import embedding_parts
        from graphcl.answers.prediction import predict_nodes

        check_asked(asked)
        z, own = self.rows(node_type, is_labelled)
        config = runs.read_config(self.folder, baselines=True)
        trained = config.origin.graph
        parted = bool(trained) and is_parts(Path(trained))
        hint = f", or pass {option('graph', trained)}" if parted else ""
        how: Any = {"nodes": nodes, "learn": learn, "hint": hint, **asked}
        graph: Any = self._graph_unless(without_graph)
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
        without_graph: bool = False,
        seed: int = 0,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> "Groups":
        """Groups nodes by their embeddings, and says what sets each group apart.

        Args:
            count: number of groups of k-means; None chooses it by the silhouette.
            method: ``kmeans``, or ``hdbscan``, which finds the number itself.
            least: the smallest group of HDBSCAN.
            node_type: of a graph with types: which.
            without_graph: profiles are of labels and degrees alone.
            seed: decides samples and first centres.
            on_note: is told what profiles lack, and why.
        """
        from graphcl.answers.grouping import cluster

        z, nodes = self.rows(node_type)
        columns, why = columns_of_run(
            nodes, self._graph_unless(without_graph), self.type_of(self.type_folder(node_type))
        )
        if why:
            on_note(why)
        how: Any = {"method": method, "least": least, "seed": seed, "columns": columns}
        return cluster(z, count, ids=nodes.ids[:], **how)

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

        index = None
        z = self._all_embeddings(check=True)
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
        return links_after(model, self._tables_again(), after, **how)

    @of_one_version
    def predict_later(
        self, after: Any, *, node_type: str | None = None, seed: int = 0, verbose: Any = None
    ) -> "Predictions":
        """Predicts labels that came after a day by what was known: see `graphcl.answers.later`."""
        from graphcl.answers.later import predict_after

        model = self._new_model(verbose)
        tables = self._tables_again()
        return predict_after(self.folder, model, tables, after, node_type=node_type, seed=seed)

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
        """
        from graphcl.reporting.contents import Sharded
        from graphcl.reporting.page import check_page, write_page

        folder = self.type_folder(node_type, is_labelled)
        kind, target = self.type_of(folder), Path(folder / "report.html" if out is None else out)
        check_page(target, layout, overwrite=overwrite or out is None)
        sharded = None
        graph: Any = None
        if self._shards is not None:
            require(
                kind is None, "report", option("embeddings"), "left out for a typed graph", "it"
            )
            sharded = Sharded(self.folder, self._shards, self._given, seed=seed)
        else:
            graph = self._graph_unless(without_graph)
            self.keep_embeddings()
        how: Any = {"layout": layout, "seed": seed, "node_type": kind}
        columns = partial(columns_of_run, graph=graph, kind=kind)
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
        whole: bool = False,
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
            whole: `nodes` and `edges` are all tables of the run, read as in training: what was
                changed in them counts, and what they lack is removed.
            retrain: go on training, embed all nodes, and turn the new space to the old one.
            epochs: of `retrain`; None is a tenth of the training's.
            keep: how many versions are kept beside the training; the oldest are removed.
            verbose: show progress on stderr.
            on_note: is told what is noticed in the tables.
            options: as of `read_tables`; with `until` and `whole`, tables are read as of that day.
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
            whole=whole,
            retrain=retrain,
            epochs=epochs,
            keep=keep,
            device=resolve_device(self.device),
            encoder=self._encoder,
            verbose=verbose,
            on_note=on_note,
            propose=self._propose,
        )

    def rollback(self, version: int | None = None) -> int:
        """Makes an earlier version the one in use, by default the one before; returns it."""
        return versions.rollback(self.path, version)
