"""The table of nodes of one type: features, labels, splits and ids."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from graphcl.arrays import Array, Booleans, Floats, Integers
from graphcl.errors import GraphError, counted, require
from graphcl.store.columns import Ids, Names

if TYPE_CHECKING:  # reading a run needs no SciPy, which takes long to import
    import scipy.sparse


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of one type, read-only.

    Attributes:
        name: the type's name.
        num_nodes: how many there are.
        x: features ``[num_nodes, features]``: a float32 array, or a `scipy.sparse.csr_array` if
            they were given as sparse; from a store also float16; None if the type has none.
        y: labels, ``[num_nodes]`` (class numbers; −1 is unlabelled) or ``[num_nodes, labels]``
            (0/1; a row of −1 is an unlabelled node, a row of zeros one with none of them), or a
            number to predict, float64 ``[num_nodes]`` (NaN where it is not known), or None.
        train_mask: the nodes that the probe learns from, or None.
        val_mask: the nodes on which the probe's regularisation strength is chosen, or None.
        test_mask: the nodes that are scored, or None.
        splits: bool ``[splits, 3, num_nodes]``: the train, validation and test nodes of each split,
            if there are several; the three masks are then those of the first. See `split`.
        node_ids: the caller's ids; None if they are ``0 … num_nodes − 1``. Ids are a type's own:
            another type may have the same.
        class_names: the names of the classes, or of the labels, in the order of their numbers;
            empty if they have none.
        preparation: what turned the columns of a table into `x`, or None; a run keeps it, and
            `read_tables` applies it to other tables.
        degree: neighbours of each node, where the edges are not at hand, as in a run; else None.
        cells: the columns of the table that they came from, for readers; neither stored nor
            learned from: see `graphcl.tabular.originals`. None if they came from none.
    """

    name: str
    num_nodes: int
    x: "Floats | scipy.sparse.csr_array | None" = None
    y: Array | None = None
    train_mask: Booleans | None = None
    val_mask: Booleans | None = None
    test_mask: Booleans | None = None
    splits: Booleans | None = None
    node_ids: Array | Names | None = None
    class_names: tuple[str, ...] = ()
    preparation: Any = None
    degree: Integers | None = None
    cells: Any = None

    def __post_init__(self) -> None:
        freeze(self)

    def __len__(self) -> int:
        return self.num_nodes

    @property
    def num_features(self) -> int:
        """The width of `x`; 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @cached_property
    def num_classes(self) -> int:
        """Number of classes, or of labels per node if there are several; 0 without any."""
        if self.y is None or self.y.size == 0 or self.has_number:
            return 0
        return int(self.y.shape[1] if self.y.ndim == 2 else self.y.max() + 1)

    @property
    def ids(self) -> Any:
        """The ids of all nodes: `node_ids`, or their rows."""
        return np.arange(self.num_nodes) if self.node_ids is None else self.node_ids

    @property
    def classes(self) -> Integers | None:
        """The labels, if each node has one class; else None."""
        single = self.y is not None and self.y.ndim == 1 and not self.has_number
        return self.y if single else None

    @property
    def described_labels(self) -> str:
        """What labels there are, in words; empty without any."""
        if self.y is None or self.has_number:
            return "" if self.y is None else "a number to predict"
        return counted(self.num_classes, "class", "classes")

    @property
    def has_number(self) -> bool:
        """Whether the label is a number to predict, such as a price, and no class."""
        return self.y is not None and self.y.dtype.kind == "f"

    def class_name(self, number: int) -> str:
        """Returns the name of a class; without names, ``class 3``."""
        known = 0 <= number < len(self.class_names)
        return self.class_names[number] if known else f"class {number}"

    @property
    def split_codes(self) -> Array | None:
        """For each node 0 none, 1 train, 2 validation, 3 test; None without a split."""
        if not (self.has_split or self.split_gap):  # half a split is no reason to draw another
            return None
        codes = np.zeros(self.num_nodes, np.uint8)
        for code, mask in enumerate((self.train_mask, self.val_mask, self.test_mask), 1):
            if mask is not None:
                codes[np.asarray(mask)] = code
        return codes

    @property
    def has_split(self) -> bool:
        """Whether there are training, validation and test nodes."""
        masks = (self.train_mask, self.val_mask, self.test_mask)
        return all(mask is not None and bool(mask.any()) for mask in masks)

    @property
    def num_splits(self) -> int:
        """Number of splits into training, validation and test nodes; 0 without a whole one."""
        return int(self.has_split) if self.splits is None else len(self.splits)

    def split(self, number: int) -> Self:
        """Returns the nodes with their split `number`, from 0, as the only one."""
        if self.splits is None:
            require(number == 0, "split", "number", "0: there are no others", number)
            return self
        count = len(self.splits)
        require(0 <= number < count, "split", "number", f"in [0, {count})", number)
        train, val, test = (mask if mask.any() else None for mask in self.splits[number])
        return replace(self, train_mask=train, val_mask=val, test_mask=test, splits=None)

    def rows(self, ids: Iterable[Any]) -> Integers:
        """Returns the row numbers of nodes by id; an id counts as its text.

        Raises:
            GraphError: no node has the id.
        """
        own: Any = self.num_nodes if self.node_ids is None else self.node_ids
        return Ids(own).rows(ids, self.name, GraphError)

    @property
    def split_gap(self) -> str:
        """Describes an incomplete split; empty if all masks or none are given."""
        masks = {"train": self.train_mask, "validation": self.val_mask, "test": self.test_mask}
        given = [name for name, mask in masks.items() if mask is not None and mask.any()]
        missing = [name for name in masks if name not in given]
        if not (given and missing):
            return ""
        return f"{' and '.join(given)} nodes are given, {' and '.join(missing)} nodes are not"


def freeze(holder: Any) -> None:
    """Makes the arrays of a holder read-only."""
    for value in vars(holder).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        elif hasattr(value, "indptr"):  # sparse features
            for part in (value.data, value.indices, value.indptr):
                part.flags.writeable = False
