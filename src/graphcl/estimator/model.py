"""`GraphCL`: the method behind scikit-learn's verbs."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, Self

import numpy as np
import sklearn
import sklearn.exceptions
import sklearn.utils
import torch
from sklearn.base import BaseEstimator

from graphcl.arrays import Array, Floats
from graphcl.devices import resolve_device
from graphcl.embedding import Chosen
from graphcl.encoders import EncoderFactory, LayeredEncoder
from graphcl.errors import GraphCLError, GraphError, ParameterError, require, suggestion
from graphcl.estimator.fitted import FITTED, Components, Fitted
from graphcl.estimator.fitting import Health, Task, fit
from graphcl.estimator.inference import Live, embed_chosen
from graphcl.estimator.partitioned import PartitionedGraph, task_over_parts
from graphcl.evaluation.splits import nodes_to_choose_by, validation_score
from graphcl.graphs.collection import GraphCollection, as_graphs, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.scaling import Scaling, TableScaling
from graphcl.losses import Loss
from graphcl.recipes import Recipe, load_recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.runs import files as runs
from graphcl.runs.nodes import write_types
from graphcl.runs.versions import current_run
from graphcl.training import Checkpoints, EpochMetrics
from graphcl.training.checkpoints import Saved
from graphcl.training.modes import Mode
from graphcl.views import Perturbation

P = ParamSpec("P")


class NotFittedError(GraphCLError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """`transform` or `save` was called before `fit`."""


class SklearnTransformer(BaseEstimator):  # type: ignore[misc]
    """The part of the estimator that exists for scikit-learn."""

    _fitted: Fitted | None = None

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002
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


def as_table(model: SklearnTransformer, z: Floats, graph: Graph | Nodes, nodes: Chosen) -> Any:
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


def _stored(init: Callable[P, None]) -> Callable[P, None]:
    """Stores each parameter as the attribute of its name, as scikit-learn wants it.

    A keyword that the estimator has not is answered with what to write instead.
    """
    signature = inspect.signature(init)
    known = [*signature.parameters][1:]

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in kwargs.items():
            if name == "random_state":
                raise ParameterError(f"GraphCL: it is called seed; write GraphCL(seed={value!r})")
            if name not in known and name in recipe_keys():
                text = f"GraphCL(Recipe({name}={value!r}))"
                raise ParameterError(f"GraphCL: {name} is a key of the recipe; write {text}")
            if name not in known:
                near = suggestion(name, [*known, *recipe_keys()]) or f"; known: {', '.join(known)}"
                raise ParameterError(f"GraphCL: unknown keyword {name!r}{near}")
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        own, *values = given.arguments.values()
        vars(own).update(zip(known, values, strict=True))

    return checked


class GraphCL(SklearnTransformer):
    """Learns node embeddings of an attributed graph, or of several, without labels.

    The keys of a recipe that people change most are keywords; None leaves the recipe's value. All
    keys can be changed with a `Recipe`: ``GraphCL(Recipe("cora", fan_out=5), epochs=20)``.

    Args:
        recipe: a shipped recipe's name, a path to a `.toml`, or a `Recipe`.
        encoder: the GNN, by name: `mean` or `residual` (the paper's), `gcn`, `sage`, `gat` or
            `gin`. Or an object: a factory or class as `graphcl.encoders.EncoderFactory` describes,
            or a module, a copy of which is trained from the weights it has.
        layers: L, the number of GNN layers.
        dim: P', the width of the embedding.
        perturbation: what draws the views: `drop`, the paper's; or an object as
            `graphcl.views.Perturbation` describes.
        edge_drop: probability that an edge is absent from a view.
        feature_drop: probability that a feature is zero in a view.
        loss: what training minimises: `nt-xent`, the paper's; or an object as
            `graphcl.losses.Loss` describes.
        temperature: τ of NT-Xent.
        epochs: how often each node is visited; all are trained, whatever the recipe's `steps`.
        batch_nodes: M, the nodes per step that the loss is taken over; 0 takes all.
        learning_rate: Adam's.
        feature_scaling: `none`; `row`: each node's features divided by their absolute sum; or
            `auto`: by what the columns hold in the training rows.
        mode: `full` encodes the whole graph at each step, `sampled` a sampled tree around each node
            of a batch; `auto` chooses by the graph's size and the memory there is.
        seed: decides weights, batches and views; on a CPU it decides every bit of the result.
            It is what scikit-learn calls `random_state`; `set_params` takes both names.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        verbose: whether to show progress on stderr, and what was decided about the graph. None is a
            progress bar alone, on terminals and in notebooks, unless scikit-learn calls.
        ignore_memory: start even where the estimate says that memory will not suffice.

    Attributes:
        recipe_: the complete recipe that was trained.
        encoder_: the trained encoder.
        num_features_: the width of the features it takes.
        history_: one `EpochMetrics` per epoch.
        scaling_: how features are scaled: the recipe's word, or what ``auto`` found, which
            `describe` says in one line; of a typed graph, that of each table.
        mode_: whether the (first) graph was trained whole or sampled, and why.
        seconds_: how long training took.
        seed_: the seed that it was trained with.
        health_: how the training went: a `graphcl.estimator.fitting.Health`, with the signs that it
            failed, if there are any.
    """

    recipe_: Recipe
    encoder_: torch.nn.Module
    num_features_: int
    history_: list[EpochMetrics]
    scaling_: TableScaling | Scaling
    mode_: Mode
    seconds_: float
    seed_: int
    health_: Health

    # Further keys of the recipe, which the command line lays over it. There, the recipe stays a
    # name: `default` may have been another when a training was begun.
    settings: Mapping[str, Any] = MappingProxyType({})

    @_stored
    def __init__(
        self,
        recipe: str | Path | Recipe = "default",
        *,
        encoder: str | EncoderFactory | torch.nn.Module | None = None,
        layers: int | None = None,
        dim: int | None = None,
        perturbation: str | Perturbation | None = None,
        edge_drop: float | None = None,
        feature_drop: float | None = None,
        loss: str | Loss | None = None,
        temperature: float | None = None,
        epochs: int | None = None,
        batch_nodes: int | None = None,
        learning_rate: float | None = None,
        feature_scaling: str | None = None,
        mode: str | None = None,
        seed: int = 0,
        device: str = "auto",
        verbose: bool | None = None,
        ignore_memory: bool = False,
    ) -> None:
        """Stores the parameters; see `_stored`."""

    def set_params(self, **params: Any) -> Self:
        """Sets parameters and returns the estimator, for scikit-learn; `random_state` is `seed`."""
        if "random_state" in params:
            params["seed"] = params.pop("random_state")
        super().set_params(**params)
        return self

    def complete_recipe(self, begun: Mapping[str, Any] | None = None) -> Recipe:
        """Returns the recipe with this estimator's keywords laid over it.

        Args:
            begun: the recipe of a training to go on with. It stands for `default`, which may have
                been another one when that training began.
        """
        return self._components(begun).recipe

    def _components(self, begun: Mapping[str, Any] | None = None) -> Components:
        # What keywords set, or `settings`.
        given = {key: self.settings.get(key, getattr(self, key, None)) for key in recipe_keys()}
        changed = {key: value for key, value in given.items() if value is not None}
        own = {key: changed.pop(key, None) for key in ("encoder", "perturbation", "loss")}
        base = load_recipe(self.recipe)
        if begun is not None and self.recipe == "default":
            base = Recipe.from_mapping(begun, where="the training that was begun")
        return Components.of(base, changed, **own)

    def fit(
        self,
        graph: Any,
        y: None = None,  # noqa: ARG002 (scikit-learn passes it)
        *,
        checkpoints: Checkpoints | str | Path | None = None,
        resume: bool = False,
        on_epoch: Callable[[EpochMetrics], object] = lambda _: None,
        callbacks: Sequence[Callable[[int, EpochMetrics, Self], object]] = (),
    ) -> Self:
        """Trains an encoder on `graph`; its labels, if any, are not looked at.

        For each sign that it failed there is a `TrainingWarning`; `health_` has them too.

        Interrupted, by the user or by a full disk, the estimator keeps the weights it has reached;
        where training fails, it stays as it was. In a group of processes that ``torchrun`` started,
        all train one encoder; see `graphcl.distributed`.

        Args:
            graph: a `Graph`, a `Data` or `HeteroData` of PyTorch Geometric, or a NetworkX graph
                whose nodes have the attribute ``x``; a list of plain ones; a `GraphCollection`,
                whose training graphs alone are looked at; or a `PartitionedGraph`, a store in as
                many parts as there are processes.
            y: ignored; for scikit-learn.
            checkpoints: a folder to save the training in, by default every minute and at its end;
                it is left there.
            resume: go on from the newest checkpoint in that folder, if there is one: on a CPU to
                the same weights, bit for bit, as without the pause.
            on_epoch: called after each epoch.
            callbacks: called after it with the epoch's number, its metrics and this model, which
                has the weights of that epoch.
        """
        given = graph if isinstance(graph, PartitionedGraph) else as_graphs(graph)
        seed: Any = self.seed
        whole = isinstance(seed, Integral) and not isinstance(seed, bool)
        require(whole, "GraphCL", "seed", "a whole number", seed)
        if isinstance(checkpoints, str | Path):
            checkpoints = Checkpoints(checkpoints)
        known = checkpoints is None or isinstance(checkpoints, Checkpoints)
        require(known, "GraphCL", "checkpoints", "a folder or a Checkpoints", checkpoints)
        begun = checkpoints.begun(recipe_keys()) if checkpoints and resume else None
        components, device = self._components(begun), resolve_device(self.device)

        def after_epoch(metrics: EpochMetrics) -> None:
            on_epoch(metrics)
            for callback in callbacks:
                callback(metrics.epoch, metrics, self)
                self._require_fitted("fit").encoder.train()  # to embed, it was set to inference

        task, saved = self._task(
            components, given, device=device, checkpoints=checkpoints, resume=resume
        )
        fit(self, task, saved=saved, checkpoints=checkpoints, on_epoch=after_epoch)
        return self

    def _task(
        self,
        components: Components,
        given: Graph | GraphCollection | PartitionedGraph,
        *,
        device: torch.device,
        checkpoints: Checkpoints | None,
        resume: bool,
    ) -> tuple[Task, Saved | None]:
        """Returns what is trained on graphs of any kind, and the checkpoint to go on from."""
        options: Any = {"device": device, "ignore_memory": self.ignore_memory}
        if isinstance(given, PartitionedGraph):
            task = task_over_parts(components, given, seed=int(self.seed), **options)
            return task, checkpoints.latest(task.trained) if checkpoints and resume else None
        graphs = given.train if isinstance(given, GraphCollection) else (given,)
        seed, recipe = int(self.seed), components.recipe
        trained = {**recipe.identity(), "seed": seed, "graph": fingerprint(graphs)}
        saved = checkpoints.latest(trained) if checkpoints and resume else None
        modes = saved.about["trained"]["modes"] if saved else ()
        prepared = components.prepare(graphs)
        first, *_ = prepared
        source, decided = components.batches(prepared, modes=modes, **options)
        encoder = components.new_encoder(first.schema, seed=seed).to(device)
        mode = decided[0]._replace(reason="as begun") if saved else decided[0]
        fitted = Fitted(components, encoder, first.schema, first.scaling, seed, [], mode=mode)
        perturbation = components.perturbation_of(graphs[0])
        return Task.of(
            fitted,
            prepared,
            source,
            perturbation,
            device=device,
            trained=trained,
            modes=[mode.name for mode in decided],
        ), saved

    def transform(
        self,
        graph: Any,
        *,
        nodes: Any = None,
        rows: Any = None,
        scratch: Path | None = None,
        node_type: str | None = None,
    ) -> Any:
        """Returns embeddings of every node of `graph`, which may be unseen, or of some.

        Args:
            graph: one graph, or several; or a typed graph, if the model was trained on one.
            nodes: of one graph: an id or several. Without ids, they are row numbers.
            rows: of one graph, instead of `nodes`: row numbers; a range, ``slice(start, stop)``; or
                a mask of booleans.
            scratch: of one large graph: a folder for temporary files, where what is computed lies
                if it would fill the memory; see `embed_graph`. The array returned may then be
                mapped from there, and the space is freed when it is let go.
            node_type: of a typed graph: the type whose nodes are embedded; None is all types.

        Returns:
            An array ``[num_nodes, dim]``; of a typed graph, a dict of such arrays by type, or the
            array of `node_type`; of several graphs, a list of such arrays in the order of
            the list, or of a collection's `graphs`: train, then validation, then test.
        """
        fitted = self._require_fitted("transform")
        given = as_graphs(graph)
        if isinstance(given, Graph):
            return self._transform_one(fitted, given, (nodes, rows), scratch, node_type)
        if nodes is not None or rows is not None or node_type is not None:
            what = "a choice of nodes" if node_type is None else "a type of nodes"
            raise GraphError(f"{given.name}: {what} is of one graph, not of several")
        return [self._transform_one(fitted, one) for one in given.graphs]

    def _transform_one(
        self,
        fitted: Fitted,
        graph: Graph,
        asked: tuple[Any, Any] = (None, None),
        scratch: Path | None = None,
        node_type: str | None = None,
    ) -> Any:
        """Returns the embeddings of all types, or of one, or of some of its nodes: ids, or rows."""
        z, chosen = embed_chosen(
            fitted,
            graph,
            *asked,
            node_type=node_type,
            device=resolve_device(self.device),
            scratch=scratch,
            verbose=bool(self.verbose),
        )
        tables = {
            name: as_table(self, some, graph.nodes[name], chosen[name]) for name, some in z.items()
        }
        several = node_type is None and not fitted.schema.is_plain
        return tables if several else next(iter(tables.values()))

    def fit_transform(self, graph: Any, y: None = None) -> Any:
        """Trains on `graph` and returns the embeddings of its nodes, as `transform` does."""
        given = as_graphs(graph)
        return self.fit(given, y).transform(given)

    def live(self, graph: Any, *, node_type: str | None = None) -> Live:
        """Returns the model beside a graph, for many calls of its `embed_new`.

        Args:
            graph: one graph, in memory or mapped from a store.
            node_type: of a graph with types: that of the new nodes.
        """
        fitted = self._require_fitted("live")
        given = as_graphs(graph)
        if isinstance(given, GraphCollection):
            raise GraphError(f"{given.name}: new nodes join one graph, not several")
        return Live(fitted, given, resolve_device(self.device), node_type)

    def embed_new(
        self,
        features: Any,
        neighbours: Any = None,
        *,
        graph: Any,
        rows: Any = None,
        edges: Any = None,
        weights: Any = None,
        node_type: str | None = None,
    ) -> Floats:
        """Returns embeddings of nodes that are not in `graph` yet, without rebuilding it.

        They are those that the grown graph embedded whole would have: on a CPU bit for bit, with
        the encoders `mean` and `residual` on dense features without edge weights; else to 1e-6 of
        the largest. The features are what the graph's `x` holds; the model scales them. For many
        calls, `live` saves the preparation.

        Args:
            features: of one node ``[P]``, or of several ``[n, P]``.
            neighbours: of one node: ids of nodes of the graph; it may be empty. Of several nodes:
                such a list for each. In a graph with types, each neighbour is ``RELATION/ID``, and
                ``<RELATION/ID`` an edge towards the new node, of a directed relation within its
                type.
            graph: the graph that they join.
            rows: instead of `neighbours`, in the same form: their row numbers. Not in a graph with
                types.
            edges: edges among the new nodes: pairs of places in `features`, and a weight as a third
                number if there is one.
            weights: of the edges to `neighbours`, in their form; None is 1 everywhere.
            node_type: of a graph with types: that of the new nodes.

        Returns:
            ``[dim]`` for one node, ``[n, dim]`` for several.

        Raises:
            GraphError: features, neighbours, edges or weights do not fit the graph.
        """
        live = self.live(graph, node_type=node_type)
        return live.embed_new(features, neighbours, rows=rows, edges=edges, weights=weights)

    def save(self, path: str | Path, *, graph: Any = None, overwrite: bool = False) -> None:
        """Writes a run directory that `load` reads back; it appears whole or not at all.

        Args:
            path: the directory.
            graph: a graph, or several, or a typed one. Its embeddings and the names of its nodes
                are kept in the run, as `graphcl train` does, for `graphcl.Run`.
            overwrite: replace a run that is there. Anything else that is there is never touched.
        """
        self._require_fitted("save")
        given = None if graph is None else as_graphs(graph)
        z: Any = None if given is None else self.transform(given)
        with runs.new_run(Path(path), overwrite=overwrite) as folder:
            several: Any = given.graphs if isinstance(given, GraphCollection) else (given,)
            known = "" if given is None else fingerprint(several)
            self.write_to(folder, runs.Origin(fingerprint=known))
            if given is not None:
                write_types(folder, given, np.concatenate(z) if isinstance(z, list) else z)

    def write_to(self, folder: Path, origin: runs.Origin) -> None:
        """Writes configuration, weights and metrics into an existing folder."""
        self._require_fitted("save").write(folder, origin)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        encoder: EncoderFactory | torch.nn.Module | None = None,
        perturbation: Perturbation | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """Returns the fitted estimator of a run directory, in its current version.

        A run never says what code to execute. Where its encoder is of the caller's own, pass the
        same class or module here, or register it first. Its own perturbation and loss are needed
        to train again, not to embed.

        Args:
            path: the run.
            device: as for the estimator.
            encoder: what the run was trained with, where that was an object.
            perturbation: likewise.
            loss: likewise.

        Raises:
            RunError: the directory is missing, or a file in it is damaged.
            ParameterError: the run's encoder is not registered, or another one was passed.
        """
        return cls.read_from(
            current_run(Path(path)),
            device=device,
            encoder=encoder,
            perturbation=perturbation,
            loss=loss,
        )

    @classmethod
    def read_from(cls, folder: Path, *, device: str = "auto", **own: Any) -> Self:
        """Returns the estimator of a folder, a run or a version of it, whichever is in use."""
        fitted = Fitted.read(folder, **{f"own_{name}": part for name, part in own.items()})
        model = cls(fitted.components.recipe, seed=fitted.seed, device=device, **own)
        model._fitted = fitted
        return model
