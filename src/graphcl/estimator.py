"""`GraphCL`: the method behind scikit-learn's verbs."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.exceptions
import sklearn.utils
import torch
from sklearn.base import BaseEstimator

from graphcl import __version__
from graphcl.assembly import recipe_batches, recipe_encoder, recipe_training
from graphcl.devices import resolve_device
from graphcl.distributed import current_share
from graphcl.embedding import embed, embed_graph
from graphcl.errors import GraphCLError, GraphError, RunError, require
from graphcl.files.text import format_toml
from graphcl.graphs.collection import GraphCollection, as_graphs
from graphcl.graphs.fingerprint import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import Recipe, load_recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.runs import files as runs
from graphcl.training import Checkpoints, EpochMetrics, train
from graphcl.training.loop import TrainingState
from graphcl.training.modes import SAMPLED_ENCODERS, Mode
from graphcl.training.progress import RowProgress, progress

Rows = npt.NDArray[np.float32]
Several = GraphCollection | list[Any] | tuple[Any, ...]
LAYERWISE_NODES = 50_000  # above, inference goes layer by layer in blocks of rows


class NotFittedError(GraphCLError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """`transform` or `save` was called before `fit`."""


class GraphCL(BaseEstimator):  # type: ignore[misc]
    """Learns node embeddings of an attributed graph, or of several, without labels.

    Args:
        recipe: a shipped recipe's name, a path to a `.toml`, or a `Recipe`.
        encoder: overrides the recipe's key of that name, as do all the keywords that follow;
            None leaves the recipe's value. See `graphcl.recipes.Recipe` for their meaning.
        layers: as above.
        dim: as above.
        edge_drop: as above.
        feature_drop: as above.
        temperature: as above.
        epochs: as above.
        batch_nodes: as above.
        learning_rate: as above.
        weight_decay: as above.
        feature_scaling: as above.
        precision: as above.
        mode: as above.
        fan_out: as above.
        sample_with_replacement: as above.
        inductive: as above.
        seed: decides weights, batches and views; on a CPU it decides every bit of the result.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        verbose: show progress on stderr.
        ignore_memory: start even where the estimate says that memory will not suffice.

    Attributes:
        recipe_: the complete recipe that was trained.
        encoder_: the trained encoder.
        num_features_: the width of the features it takes.
        history_: one `EpochMetrics` per epoch.
        mode_: whether the (first) graph was trained whole or sampled, and why.
        seconds_: how long training took.
        seed_: the seed that it was trained with.
    """

    recipe_: Recipe
    encoder_: torch.nn.Module
    num_features_: int
    history_: list[EpochMetrics]
    mode_: Mode
    seconds_: float
    seed_: int

    def __init__(
        self,
        recipe: str | Path | Recipe = "default",
        *,
        encoder: str | None = None,
        layers: int | None = None,
        dim: int | None = None,
        edge_drop: float | None = None,
        feature_drop: float | None = None,
        temperature: float | None = None,
        epochs: int | None = None,
        batch_nodes: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        feature_scaling: str | None = None,
        precision: str | None = None,
        mode: str | None = None,
        fan_out: int | None = None,
        sample_with_replacement: bool | None = None,
        inductive: bool | None = None,
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
        ignore_memory: bool = False,
    ) -> None:
        self.recipe = recipe
        self.encoder = encoder
        self.layers = layers
        self.dim = dim
        self.edge_drop = edge_drop
        self.feature_drop = feature_drop
        self.temperature = temperature
        self.epochs = epochs
        self.batch_nodes = batch_nodes
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.feature_scaling = feature_scaling
        self.precision = precision
        self.mode = mode
        self.fan_out = fan_out
        self.sample_with_replacement = sample_with_replacement
        self.inductive = inductive
        self.seed = seed
        self.device = device
        self.verbose = verbose
        self.ignore_memory = ignore_memory

    def complete_recipe(self) -> Recipe:
        """Returns the recipe with this estimator's keywords laid over it."""
        given = {key: getattr(self, key) for key in recipe_keys()}
        changed = {key: value for key, value in given.items() if value is not None}
        return load_recipe(self.recipe).with_values(**changed)

    def fit(
        self,
        graph: Any,
        y: None = None,  # noqa: ARG002 (scikit-learn passes it)
        *,
        checkpoints: Checkpoints | str | Path | None = None,
        resume: bool = False,
        on_epoch: Callable[[EpochMetrics], object] = lambda _: None,
    ) -> Self:
        """Trains an encoder on `graph`; its labels, if any, are not looked at.

        Interrupted, by the user or by a full disk, the estimator keeps the weights it has reached;
        where training fails, it stays as it was. In a group of processes that ``torchrun`` started,
        all train one encoder; see `graphcl.distributed`.

        Args:
            graph: a `Graph` or a `torch_geometric.data.Data`; a list of them; or a
                `GraphCollection`, whose training graphs alone are looked at.
            y: ignored; for scikit-learn.
            checkpoints: a folder to save the training in, by default every minute and at its end;
                it is left there.
            resume: go on from the newest checkpoint in that folder, if there is one: on a CPU to
                the same weights, bit for bit, as without the pause.
            on_epoch: called after each epoch.
        """
        given = as_graphs(graph)
        graphs = given.train if isinstance(given, GraphCollection) else (given,)
        seed: Any = self.seed
        whole = isinstance(seed, Integral) and not isinstance(seed, bool)
        require(whole, "GraphCL", "seed", "a whole number", seed)
        if isinstance(checkpoints, str | Path):
            checkpoints = Checkpoints(checkpoints)
        known = checkpoints is None or isinstance(checkpoints, Checkpoints)
        require(known, "GraphCL", "checkpoints", "a folder or a Checkpoints", checkpoints)
        recipe, device, seed = self.complete_recipe(), resolve_device(self.device), int(seed)
        trained = {**asdict(recipe), "seed": seed, "graph": fingerprint(graphs)}
        saved = checkpoints.latest(trained) if checkpoints and resume else None
        modes = saved.about["trained"]["modes"] if saved else ()
        source, decided = recipe_batches(
            recipe, graphs, device=device, modes=modes, ignore_memory=self.ignore_memory
        )
        mode = decided[0]._replace(reason="as begun") if saved else decided[0]
        encoder = recipe_encoder(recipe, given.num_features, seed=seed).to(device)
        if checkpoints:
            checkpoints.begin(trained | {"modes": [mode.name for mode in decided]}, saved)
        speaks = self.verbose and current_share().first
        if speaks:
            print(f"mode {mode.name}: {mode.reason}", file=sys.stderr, flush=True)
        began = time.perf_counter() - (saved.about["seconds"] if saved else 0.0)
        shown = progress(recipe.epochs) if speaks else nullcontext(lambda _: None)
        before = self.__dict__.copy()
        with shown as show:

            def begin(state: TrainingState) -> None:
                if saved:
                    saved.restore(state)
                new = {"recipe_": recipe, "encoder_": encoder, "mode_": mode, "seed_": seed}
                new |= {"history_": list(state.history), "seconds_": state.seconds}
                new["num_features_"] = given.num_features
                self.__dict__.update(new)  # at once: an interrupt finds this fit or the earlier one

            def record(metrics: EpochMetrics) -> None:
                self.history_.append(metrics)
                self.seconds_ = time.perf_counter() - began
                show(metrics)
                on_epoch(metrics)

            try:
                train(
                    encoder,
                    source,
                    **recipe_training(recipe),
                    seed=seed,
                    restore=begin,
                    on_step=checkpoints or (lambda _: None),
                    on_epoch=record,
                )
            except (GraphCLError, torch.OutOfMemoryError) as error:
                if not isinstance(error, RunError):  # a full disk spoils no weights
                    self.__dict__ = before
                raise
        return self

    @overload
    def transform(self, graph: Several) -> list[Rows]: ...
    @overload
    def transform(
        self, graph: Any, *, nodes: slice | None = ..., scratch: Path | None = ...
    ) -> Rows: ...
    def transform(
        self, graph: Any, *, nodes: slice | None = None, scratch: Path | None = None
    ) -> Any:
        """Returns embeddings of every node of `graph`, which may be unseen.

        Args:
            graph: one graph, or several.
            nodes: of one graph: a range of its nodes, ``slice(start, stop)``; None is all.
            scratch: of one large graph: a folder for temporary files, where what is computed lies
                if it would fill the memory; see `embed_graph`. The array returned may then be
                mapped from there, and the space is freed when it is let go.

        Returns:
            An array ``[num_nodes, dim]``; of several graphs, a list of such arrays in the order of
            the list, or of a collection's `graphs`: train, then validation, then test.
        """
        self._require_fitted("transform")
        given = as_graphs(graph)
        if isinstance(given, GraphCollection):
            if nodes is not None:
                raise GraphError(f"{given.name}: a range of nodes is of one graph, not of several")
            return [self._transform_one(one, None, None) for one in given.graphs]
        return self._transform_one(given, nodes, scratch)

    def _transform_one(self, graph: Graph, nodes: slice | None, scratch: Path | None) -> Any:
        name, found, wanted = graph.name, graph.num_features, self.num_features_
        if found != wanted:
            raise GraphError(f"{name}: has {found} features; the model was trained on {wanted}")
        device = resolve_device(self.device)
        encoder, scaling = self.encoder_.to(device), self.recipe_.feature_scaling
        if graph.num_nodes > LAYERWISE_NODES and self.recipe_.encoder in SAMPLED_ENCODERS:
            options: dict[str, Any] = {"device": device, "feature_scaling": scaling}
            options |= {"nodes": nodes, "scratch": scratch}
            if self.verbose:
                options["on_rows"] = RowProgress()
            return self._table(embed_graph(encoder, graph, **options), graph, nodes)
        x, adjacency = graph_tensors(graph, device=device, feature_scaling=scaling)
        return self._table(embed(encoder, x, adjacency)[nodes or slice(None)], graph, nodes)

    @overload
    def fit_transform(self, graph: Several, y: None = None) -> list[Rows]: ...
    @overload
    def fit_transform(self, graph: Any, y: None = None) -> Rows: ...
    def fit_transform(self, graph: Any, y: None = None) -> Any:
        """Trains on `graph` and returns the embeddings of its nodes, as `transform` does."""
        given = as_graphs(graph)
        return self.fit(given, y).transform(given)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:  # noqa: ARG002
        """Returns the names of an embedding's columns: ``graphcl0`` and so on.

        Args:
            input_features: ignored; for scikit-learn.
        """
        self._require_fitted("get_feature_names_out")
        return np.array([f"graphcl{column}" for column in range(self.recipe_.dim)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Chooses what `transform` returns: ``default`` arrays, or ``pandas`` or ``polars`` tables.

        A pandas table has the graph's node ids for its index; Polars knows no index.
        """
        if transform is not None:
            known = ("default", "pandas", "polars")
            require(transform in known, "set_output", "transform", ", ".join(known), transform)
            self._sklearn_output_config = {"transform": transform}
        return self

    def _table(self, z: Rows, graph: Graph, nodes: slice | None) -> Any:
        asked = getattr(self, "_sklearn_output_config", {}).get("transform")
        kind = asked or sklearn.get_config()["transform_output"]
        names = self.get_feature_names_out()
        if kind == "pandas":
            import pandas

            ids = None if graph.node_ids is None else graph.node_ids[nodes or slice(None)]
            return pandas.DataFrame(z, index=ids, columns=names)
        if kind == "polars":
            import polars

            return polars.DataFrame(z, schema=names.tolist(), orient="row")
        return z

    @property
    def n_features_in_(self) -> int:
        """The width of the features, under scikit-learn's name."""
        return self.num_features_

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
        return hasattr(self, "encoder_")

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes a run directory that `load` reads back; it appears whole or not at all.

        Args:
            path: the directory.
            overwrite: replace a run that is there. Anything else that is there is never touched.
        """
        self._require_fitted("save")
        with runs.new_run(Path(path), overwrite=overwrite) as folder:
            self.write_to(folder)

    def write_to(self, folder: Path, **origin: str) -> None:
        """Writes configuration, weights and metrics into an existing folder."""
        about: dict[str, str | int] = {"format": runs.FORMAT, "graphcl": __version__}
        about |= {"seed": self.seed_, "num_features": self.num_features_, **origin}
        recipe = self.recipe_.to_toml()
        (folder / runs.CONFIG).write_text(f"[recipe]\n{recipe}\n[run]\n{format_toml(about)}")
        runs.write_weights(folder / runs.MODEL, self.encoder_.state_dict())
        lines = [json.dumps(asdict(metrics), allow_nan=False) for metrics in self.history_]
        (folder / runs.METRICS).write_text("".join(f"{line}\n" for line in lines))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Returns the fitted estimator of a run directory.

        Raises:
            RunError: the directory is missing, or a file in it is damaged.
        """
        folder, where = Path(path), Path(path) / runs.CONFIG
        config = runs.read_config(folder)
        recipe, about = Recipe.from_mapping(config["recipe"], where=str(where)), config["run"]
        for key in ("seed", "num_features"):
            if key not in about:
                raise RunError(f"{where}: [run] lacks {key!r}")
            if type(about[key]) is not int:
                raise RunError(f"{where}: [run] {key} must be a whole number; got {about[key]!r}")
        seed, num_features = about["seed"], about["num_features"]
        # Compared with the weights that are there before room for them is made.
        if not 1 <= num_features <= runs.weights_bytes(folder) // (4 * recipe.dim):
            wrong = f"num_features = {num_features} and dim = {recipe.dim}"
            raise RunError(f"{where}: {wrong} do not fit {runs.MODEL}")
        model = cls(recipe, seed=seed, device=device)
        model.recipe_, model.num_features_, model.seed_ = recipe, num_features, seed
        model.encoder_ = recipe_encoder(recipe, num_features, seed=seed)
        try:
            model.encoder_.load_state_dict(runs.read_weights(folder))
        except RuntimeError:
            raise RunError(f"{folder / runs.MODEL}: its weights do not fit {runs.CONFIG}") from None
        try:
            model.history_ = [EpochMetrics(**line) for line in runs.read_metrics(folder)]
        except TypeError as error:
            raise RunError(f"{folder / runs.METRICS}: damaged ({error})") from None
        model.seconds_ = model.history_[-1].seconds if model.history_ else 0.0
        return model

    def _require_fitted(self, verb: str) -> None:
        if not hasattr(self, "encoder_"):
            raise NotFittedError(f"GraphCL: call fit before {verb}")
