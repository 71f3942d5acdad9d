"""What a run has in its folder: a version, its graph, model, embeddings and nodes.

`graphcl.run` has what one asks of it. Nothing here imports torch or a graph until it is needed.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from graphcl.answers.inputs import nodes_of_type, shards_of_run
from graphcl.arrays import Array
from graphcl.errors import GraphCLError, RunError, option, require
from graphcl.files.remote import local
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.nodes import (
    describe_nodes,
    lacks_embeddings,
    meant_folder,
    read_nodes,
    run_types,
    type_folder,
)
from graphcl.runs.versions import of_one_version
from graphcl.store.columns import Ids
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:  # each is imported by the answer that needs it
    from torch import nn

    from graphcl.encoders import EncoderFactory
    from graphcl.estimator.model import GraphCL
    from graphcl.graphs.graph import Graph
    from graphcl.opening import AnyGraph
    from graphcl.runs.graph import Propose

NAME_TABLES = (
    "name them: Run(RUN, graph=EDGES, nodes=NODES), or update(whole=True, edges=EDGES, nodes=NODES)"
)


class RunContents:
    """A run in a folder: the version in use, its graph, model, embeddings and nodes.

    `graphcl.Run` says what the arguments are; it adds all that one asks of a run.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        graph: Any = None,
        embeddings: str | Path | None = None,
        device: str = "auto",
        encoder: "EncoderFactory | nn.Module | None" = None,
        **tables: Any,
    ) -> None:
        self.path = versions.run_root(Path(path))
        self._version = None if self.path == Path(path) else Path(path)
        self.device = device
        self._encoder = encoder
        self._given, self._tables = local(graph), TableOptions.named("Run", local(tables))
        self._shards = Path(local(embeddings)) if embeddings else None
        self._given_of: Path | None = None  # the version that the graph was given for
        self._kept: dict[tuple[Any, ...], Any] = {}
        self.read_graph: Callable[[Path], AnyGraph] = self._read_graph
        self._propose: Propose = lambda *_: NAME_TABLES
        runs.read_config(self.path, baselines=True)

    def reading(
        self, tables: TableOptions, read_graph: "Callable[[Path], AnyGraph]", propose: "Propose"
    ) -> Self:
        """Sets how the graph is read, as a command does; all it asks is of the version in use.

        Args:
            tables: options by which tables are read.
            read_graph: opens the graph of a version by its folder.
            propose: says how to name tables that the run does not keep.
        """
        parts = self._shards is None or not tables.given()
        require(parts, str(self.path), option("graph"), "a store in parts, not tables", self._given)
        self._tables, self.read_graph, self._propose = tables, read_graph, propose
        with suppress(RunError):  # whoever asks for an answer is told what is damaged
            self._version = self.folder
        return self

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
            RunError: the run does not keep it, it cannot be read, or it has changed.
        """
        return self._once("graph", self.read_graph)  # type: ignore[no-any-return]

    def _graph_unless(self, without_graph: bool) -> "AnyGraph | None":
        """Returns the graph; None if it is not wanted, or if embeddings are in shards.

        Raises:
            RunError: there is none; the message also says how to do without.
        """
        if without_graph or self._shards is not None:
            return None
        try:
            return self.graph
        except GraphCLError as error:
            if self._given is not None or self._tables.given():
                raise
            without = option("without_graph", True)
            raise RunError(f"{error}; or do without the graph: {without}") from None

    def _tables_again(self) -> tuple[Any, TableOptions]:
        """Returns the tables of the run as the caller names them, and how to read them."""
        from graphcl.runs.graph import named_tables

        return named_tables(self.folder, self._given, self._tables, self._propose)

    @property
    def model(self) -> "GraphCL":
        """The trained model."""
        return self._once("model", lambda _: self._new_model())  # type: ignore[no-any-return]

    def _new_model(self, verbose: bool | None = None) -> "GraphCL":
        from graphcl.estimator.model import GraphCL

        model = GraphCL.read_from(self.folder, device=self.device, encoder=self._encoder)
        return model.set_params(verbose=verbose)

    @property
    @of_one_version
    def embeddings(self) -> Any:
        """The embeddings, ``[nodes, dim]``; of a graph with types, such rows by type.

        They are mapped from files, in the order of the graph: nodes that stayed, then new ones.
        """
        return self._all_embeddings(check=False)

    def _all_embeddings(self, *, check: bool) -> Any:
        """Returns the embeddings of all types; `check` compares them with their checksums."""
        if len(self.types) < 2:
            return self.rows(check=check)[0]
        return {name: self.rows(name, check=check)[0] for name in self.types}

    def nodes(self, node_type: str | None = None) -> Nodes:
        """Returns what the run keeps of its nodes: ids, labels, split and degrees.

        Args:
            node_type: of a graph with types: which; not needed if it has one.
        """
        return self.rows(node_type, check=False)[1]

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
        nodes_of = partial(nodes_of_type, self, graph=self._given, shards=bool(self._shards))
        return meant_folder(self.folder, node_type, fits, who=str(self.path), nodes_of=nodes_of)

    def type_of(self, folder: Path) -> str | None:
        """Returns the type whose folder this is; None for the run itself."""
        named = (one for one in self.types if type_folder(self.folder, one) == folder)
        return next(named, None)

    @of_one_version
    def rows(
        self,
        node_type: str | None = None,
        fits: Callable[[Nodes], bool] = lambda _: False,
        *,
        check: bool = True,
    ) -> tuple[Any, Nodes]:
        """Returns the embeddings of a type, and what the run keeps of its nodes.

        The graph is read only if it was given, or if the run lacks something. `check` compares
        embeddings with their checksum, which reads them whole.

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
        z = runs.read_embeddings(folder, check=check)
        nodes = None if given else read_nodes(self.folder, kind)
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

    def _places(self, nodes: Nodes, ids: Any, rows: Any) -> Array:
        """Returns the rows of some nodes, which are given by ids or by rows; None are all."""
        found = Ids(nodes.ids).chosen(ids, rows, str(self._shards or self.path), RunError)
        return np.arange(nodes.num_nodes)[slice(None) if found is None else found]
