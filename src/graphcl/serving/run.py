"""What a run answers while it is served: about its nodes, and about nodes that it does not have.

The version that answers is turned to another one while requests go on.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.answers.evidence import embedding_parts
from graphcl.answers.inputs import KnownLabels, known_labels
from graphcl.answers.learning import Learned, learn
from graphcl.answers.link_model import CosineScores
from graphcl.answers.linking import ModelScores
from graphcl.answers.predicted import explain
from graphcl.answers.similar import nearest_without, stored_index
from graphcl.arrays import Array
from graphcl.errors import GraphCLError, GraphError, RunError
from graphcl.estimator.inference import Live, NoSuchNodeError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.unsupervised import EXACT_ROWS, unit_rows
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.edges import reverse_order
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, read_nodes, run_types, type_folder
from graphcl.runs.versions import Mark, run_root
from graphcl.serving.requests import New
from graphcl.tabular.kinds import prepare_rows
from graphcl.tabular.preparation import read_preparation

MOST_LABELLED = 10_000  # nodes that labels are learned from; of more, a sample
BLOCK, MOST_ANEW = 1 << 14, 8  # rows compared at a time; a share of them makes a new index
STAYS = 1e-4  # 1 − cosine of a row with what the index holds of it: nearer ones stay there
LOOK = 0.5  # seconds between two looks at the run
AGAIN = 30.0  # seconds until a version that could not be loaded is tried again
LEARNING_SECONDS = 2.0  # that the first requests wait for the labels to be learned


class UnknownError(GraphError):
    """Something was asked for that the run does not have: a node, or labels."""


class NotYetError(GraphError):
    """The answer is being prepared; ask again in a moment."""


class _Learner:
    """Learns something in a thread, which may take minutes, and only once.

    Args:
        what: is learned, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what, self._begins = what, threading.Lock()
        self.done: Future[Any] = Future()
        self._until = 0.0

    @property
    def begun(self) -> bool:
        """Whether it is being learned, or was."""
        return self._until > 0

    def begin(self, learn: Callable[[], Any]) -> None:
        """Begins, unless it has begun."""
        with self._begins:
            if not self._until:
                self._until = time.monotonic() + LEARNING_SECONDS
                # The thread alone holds what learns: nothing keeps a version that nobody asks.
                threading.Thread(
                    target=self._run, args=(learn,), name="learning", daemon=True
                ).start()

    def result(self, learn: Callable[[], Any]) -> Any:
        """Returns what was learned; the first ones who ask wait a little for it.

        Raises:
            NotYetError: it is still being learned.
        """
        self.begin(learn)
        try:
            # Once it is known to take long nobody waits: those who do hold the threads that answer.
            return self.done.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise NotYetError(f"{self._what} being learned; ask again in a while") from None

    def _run(self, learn: Callable[[], Any]) -> None:
        try:
            self.done.set_result(learn())
        except Exception as error:  # raised where somebody asks, as any other fault of ours
            self.done.set_exception(error)


class ServedRun:
    """A run that is ready to answer; everything is read when it is made.

    Args:
        path: the run, or the folder of one of its versions.
        graph: the graph that it was trained on.
        device: where new nodes are embedded.
        node_type: of a graph with types: the one whose nodes it answers about.
        before: another version, of whose index much may stay.
    """

    def __init__(
        self,
        path: Path,
        graph: Graph | GraphCollection,
        *,
        device: str = "cpu",
        node_type: str | None = None,
        before: "ServedRun | None" = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise RunError(f"{path}: has {len(graph.graphs)} graphs; a service is of one")
        model = GraphCL.read_from(path, device=device)
        root = run_root(path.absolute())
        self.path, self.name = path, root.name
        self.version = int(path.name) if root != path.absolute() else 0
        self.live: Live = model.live(graph, node_type=node_type)
        self.graph, own = self.live.graph, self.live.nodes
        self.node_type = own.name if run_types(path) else None
        self.num_features = own.num_features
        self.nodes: Nodes = read_nodes(path, self.node_type) or describe_nodes(graph, own.name)
        path = self.folder = type_folder(path, self.node_type)
        self.z: Array = runs.read_embeddings(path)
        if not len(self.z) == self.nodes.num_nodes == own.num_nodes:
            found = f"{len(self.z)} embeddings and {self.nodes.num_nodes} nodes"
            raise RunError(f"{path}: {found} for a graph of {own.num_nodes}")
        self.preparation = read_preparation(path) or own.preparation
        few = len(self.z) <= EXACT_ROWS
        self._unit = unit_rows(self.z) if few else None
        self._index: Any = None if few else self._index_after(before)
        self._labels = self._known_labels()
        self._within: list[tuple[Any, Any]] = []  # edges among nodes of the type, both ways
        for one in self.graph.relations.values():
            if one.source == one.target == own.name:
                self._within.append((one.indptr, one.indices))
                if not one.undirected:
                    back = reverse_order(one.indptr, one.indices, own.num_nodes)
                    self._within.append(back[:2])
        # The first new node compiles loops; no request should wait for that.
        near = {"neighbours": []} if self.node_type else {"rows": [*range(min(1, own.num_nodes))]}
        self.live.embed_new(np.zeros(own.num_features, np.float32), **near)
        recipe = runs.read_config(self.path).recipe
        self._parts = embedding_parts(recipe, self.num_features)
        self._seen = self.graph if self.node_type is None else own  # what predictions look at
        self._embed = model.transform
        self._labels_learner = _Learner("the labels are")
        self._links_learner = _Learner("a model of links is")

    @property
    def dim(self) -> int:
        """The columns of an embedding."""
        return int(self.z.shape[1])

    @property
    def can_predict(self) -> bool:
        """Whether the run has labels to learn from."""
        return self._labels is not None

    @property
    def num_classes(self) -> int:
        """The classes, or labels, that it can tell apart."""
        return 0 if self._labels is None else len(self._labels.classes)

    def _index_after(self, before: "ServedRun | None") -> Any:
        """Returns the index of similar nodes; to build one of many nodes takes minutes.

        After an update, most rows are in their place: those that moved are put in anew. The index
        only proposes rows, and cosines are computed from the embeddings: a row that has hardly
        turned is proposed where it was. Of those that an update embeds again, most have not.
        """
        index, rows = None if before is None else before._index, len(self.z)
        if before is None or index is None or before.dim != self.dim:  # it was trained anew
            return stored_index(self.folder, self.z)[0]
        old, both = before.z, min(rows, len(before.z))
        differ = [
            start + np.flatnonzero((old[start:end] != self.z[start:end]).any(axis=1))
            for start in range(0, both, BLOCK)
            if (end := min(start + BLOCK, both))
        ]
        moved = np.concatenate(differ)
        if len(moved):
            held = unit_rows(np.stack(index.get(moved)))
            moved = moved[1 - (held * unit_rows(self.z[moved])).sum(axis=1) > STAYS]
        fresh = np.concatenate([moved, np.arange(both, rows)])
        gone = np.concatenate([moved, np.arange(both, len(old))])
        if len(fresh) * MOST_ANEW > rows:
            return stored_index(self.folder, self.z)[0]
        if not len(fresh) and not len(gone):
            return index
        index = index.copy()
        index.remove(gone)
        index.add(fresh, unit_rows(self.z[fresh]))
        return index

    @property
    def is_ready(self) -> bool:
        """Whether the labels are learned, if there are any."""
        return self._labels is None or self._labels_learner.done.done()

    def learn(self) -> None:
        """Begins to learn the labels."""
        if self._labels is not None:
            self._labels_learner.begin(self._learn_labels)

    def learn_as(self, before: "ServedRun") -> None:
        """Learns what another version has learned, or begun to; returns when that is done."""
        self.learn()
        if before._links_learner.begun and not self.node_type:
            self._links_learner.begin(self._learn_links)
        for learner in (self._labels_learner, self._links_learner):
            if learner.begun:
                learner.done.exception()  # waits; a fault is raised where somebody asks

    def _known_labels(self) -> KnownLabels | None:
        given = self.nodes.y
        if given is None:
            return None
        known = known_labels(given, self.nodes.ids, self.nodes.class_names)
        if known.number:
            return known if known.known.any() else None
        counts = known.targets[known.known].sum(axis=0)
        varied = ((counts > 0) & (counts < known.known.sum())).sum()
        return known if varied >= (1 if known.several else 2) else None

    def _fit_labels(self) -> Learned:
        """Returns the probe and what it looks at; the first call begins to fit it.

        Raises:
            UnknownError: there are no labels.
            NotYetError: it is still being fitted.
        """
        if self._labels is None:
            raise UnknownError(f"{self.name}: has no labels to learn from")
        learned: Learned = self._labels_learner.result(self._learn_labels)
        return learned

    def _learn_labels(self) -> Learned:
        """Learns as `predict` does; the run keeps it for other workers, and for the next start."""
        assert self._labels is not None
        known, labelled = self._labels, np.flatnonzero(self._labels.known)
        if len(labelled) > MOST_LABELLED:
            some = np.random.default_rng(0).choice(labelled, MOST_LABELLED, replace=False)
            known = known.only(np.isin(np.arange(len(known.known)), some))
        try:
            how: Any = {"graph": self._seen, "parts": self._parts, "folder": self.folder}
            return learn(self.z, self.nodes.ids, known, **how)
        except GraphError as error:  # of a sample: one class alone
            raise UnknownError(str(error)) from None

    def rows(self, ids: list[str]) -> Array:
        """Returns the rows of nodes.

        Raises:
            UnknownError: no node has an id.
        """
        try:
            return self.live.rows_of(np.array(ids, dtype=object))
        except GraphError as error:
            raise UnknownError(str(error)) from None

    def id(self, row: int) -> Any:
        """Returns the id of a row, of the graph's kind: a number or a text."""
        value = self.nodes.ids[row]
        return value.item() if isinstance(value, np.generic) else value

    def prepare(self, rows: Sequence[Mapping[str, Any]]) -> Array:
        """Returns the features of rows with the columns of the training's table.

        Raises:
            GraphError: a value does not fit.
        """
        assert self.preparation is not None
        return prepare_rows(rows, self.preparation, self.num_features)

    def embed_new(self, new: New) -> Array:
        """Returns the exact embeddings of new nodes."""
        try:
            return self.live.embed_new(
                new.features, new.neighbours, edges=new.edges or None, weights=new.weights
            )
        except NoSuchNodeError as error:
            raise UnknownError(str(error)) from None

    def joined(self, neighbours: list[str]) -> Array:
        """Returns the rows of a new node's neighbours that are of its own type."""
        if self.node_type is None:
            return self.rows(neighbours)
        found = [
            self.live.rows_of(np.array(names, dtype=object))
            for (key, _), names in self.live.neighbours_of(neighbours).items()
            if key[0] == key[2]
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def near(self, vectors: Array, k: int, without: list[Array]) -> list[tuple[Array, Array]]:
        """Returns the k nodes most similar to each vector, apart from some rows of each.

        Each has their rows and cosines, most similar first.
        """
        rows, k = self.z if self._unit is None else self._unit, min(k, len(self.z))
        found = []
        for unit, apart in zip(unit_rows(vectors), without, strict=True):
            best, cosines = nearest_without(rows, unit, k, apart, self._index)
            found.append((best, np.clip(cosines, -1, 1)))
        return found

    def label(self, row: int) -> Any:
        """Returns the label of a node; None if it has none, or may have several."""
        y = self.nodes.classes
        if y is None or y[row] < 0:
            return None
        number = int(y[row])
        return self.nodes.class_name(number) if self.nodes.class_names else number

    def linked(self, rows: Array) -> list[Array]:
        """Returns the neighbours of each node that are of its type, and the node itself."""
        return [
            np.concatenate(
                [indices[indptr[row] : indptr[row + 1]] for indptr, indices in self._within]
                + [[row]]
            ).astype(np.int64)
            for row in rows.tolist()
        ]

    def link_scores(self) -> ModelScores | CosineScores:
        """Returns scores of links by a model; the first call begins to learn it.

        Those of a typed graph, and of one with too few edges to learn from, are cosines.

        Raises:
            NotYetError: it is still being learned.
        """
        learned = None if self.node_type else self._links_learner.result(self._learn_links)
        return learned or CosineScores(self.z, None)

    def _learn_links(self) -> ModelScores | None:
        """Learns as `links` does; a large graph is embedded again."""
        z = np.asarray(self.z)
        return ModelScores.learn(z, self.graph, None, self._embed, index=self._index)

    def likely(
        self, z: Array, rows: Array | None, k: int, without: list[Array]
    ) -> Iterator[tuple[Array, ...]]:
        """Yields the k likeliest links that each node lacks: rows, scores and reasons.

        Args:
            z: embeddings.
            rows: the nodes that they are of, None for new ones.
            k: how many of each.
            without: the rows that each is linked to.
        """
        scores = self.link_scores()
        for place, apart in enumerate(without):
            of, one = slice(place, place + 1), scores
            if isinstance(scores, CosineScores):
                ((near, found),) = self.near(z[of], k, [apart])
                yield near, found, np.full(len(near), None)
                continue
            if rows is None:
                one = scores.of_new(z[of], [apart])
            pairs, found = one.missing(np.zeros(1, np.int64) if rows is None else rows[of], k)
            yield pairs[:, 1], found, one.why(pairs)

    def predict(self, rows: Array, *, why: bool = False) -> list[dict[str, Any]]:
        """Returns labels with calibrated probabilities.

        A node with a label gets the probabilities of a probe that has not seen it.

        Args:
            rows: the nodes.
            why: give reasons, too; see `graphcl.answers.predicted`.

        Raises:
            UnknownError: the run has no labels.
            NotYetError: they are still being learned.
        """
        learned = self._fit_labels()
        answers = learned.with_held_out(learned.of_rows(rows), rows)
        found = [self._prediction(one) for one in answers]
        if why:
            places = answers.argmax(axis=1) * (not learned.known.number)
            how: Any = {"graph": self._seen, "ids": self.nodes.ids}
            for one, reason in zip(found, explain(learned, rows, places, **how), strict=False):
                one["why"] = {"text": str(reason), **asdict(reason)}
        return found

    def predict_new(self, z: Array, new: New) -> list[dict[str, Any]]:
        """Returns labels of new nodes, likewise; `z` are their embeddings."""
        near = [self.joined(some) for some in new.neighbours]
        found = self._fit_labels().of_new(z, np.asarray(new.features, np.float32), near)
        return [self._prediction(one) for one in found]

    def _prediction(self, probabilities: Array) -> dict[str, Any]:
        labels = self._labels
        assert labels is not None
        if labels.number:
            return dict(zip(("value", "low", "high"), probabilities.tolist(), strict=True))
        names = [str(name) for name in labels.classes]
        shares = dict(zip(names, (float(one) for one in probabilities), strict=True))
        if labels.several:
            chosen = [name for name, share in shares.items() if share > 0.5]
            return {"labels": chosen, "probabilities": shares}
        best = int(probabilities.argmax())
        return {
            "label": labels.classes[best],
            "probability": float(probabilities[best]),
            "probabilities": shares,
        }


class Current:
    """The version of a run that answers.

    A request keeps the version that it began with. A new one is loaded beside the old, in a thread;
    it answers once it has learned what the old one had learned, even if another is in use by then,
    and that one is next: of versions that come quicker than they are loaded, some are passed over.

    Args:
        load: returns the version in use, all of it; it is given the one before, or None.
        mark: returns what changes with the version in use.

    Attributes:
        served: the version.
    """

    def __init__(
        self,
        load: Callable[[ServedRun | None], ServedRun],
        mark: Callable[[], Mark] = lambda: (),
    ) -> None:
        self._load, self._mark = load, mark
        self._seen, self._again = mark(), 0.0
        self._failed: Mark | None = None
        self._closed = threading.Event()
        self.served = load(None)
        self.turn()

    def watch(self, *others: Callable[[], None]) -> None:
        """Looks at the run until it is closed; does other things as often, beside it."""

        def again(work: Callable[[], None]) -> None:
            while not self._closed.wait(LOOK):
                work()

        for work in (self.turn, *others):
            threading.Thread(target=again, args=(work,), name="watching", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._closed.set()

    def turn(self) -> None:
        """Turns to the version in use, if it is another."""
        mark = self._mark()
        if mark == self._seen or (mark == self._failed and time.monotonic() < self._again):
            return
        try:
            fresh = self._load(self.served)
            fresh.learn_as(self.served)
        except Exception as error:  # of any kind: the old version goes on answering
            said = str(error) if isinstance(error, GraphCLError) else f"bug: {error!r}"
            if self._mark() == mark:
                self._failed, self._again = mark, time.monotonic() + AGAIN
                text = f"serve: stays at version {self.served.version}: {said}"
                print(" ".join(text.split())[:500], file=sys.stderr, flush=True)
            return
        self.served, self._seen = fresh, mark
        gc.collect()
