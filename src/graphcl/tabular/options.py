"""The options for reading tables, and the report on what was found in them."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from graphcl.errors import require
from graphcl.tabular.edges import EdgeCounts

MISSING = ("refuse", "zero", "mean")
FEATURES = ("columns", "structural", "both")


@dataclass(frozen=True)
class TableOptions:
    """How to read tables.

    Attributes:
        nodes: the node table: a file, ``FILE:TABLE`` of a database, an SQL query, or a feature
            matrix.
        source_column: column of the edges' first ends; None guesses it.
        target_column: column of the edges' second ends; None guesses it.
        weight: column of positive edge weights; None leaves edges unweighted.
        id_column: column of the nodes' ids; None guesses it.
        label: column of the nodes' classes.
        split: column with the values train, val and test.
        one_hot: text columns to encode.
        ignore: columns of the node table to leave out.
        missing: ``refuse`` missing values, or fill in ``zero`` or the column's ``mean``.
        add_missing_nodes: add nodes that only edges name, with features of zero.
        features: ``columns``, ``structural`` (computed from the edges alone) or ``both``.
        header: whether delimited files begin with column names; None guesses it.
        like: names of the features to make, in this order: those that a model was trained on.
            Other columns are left out, and a new category is encoded as zeros.
    """

    nodes: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    weight: str | None = None
    id_column: str | None = None
    label: str | None = None
    split: str | None = None
    one_hot: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: str = "refuse"
    add_missing_nodes: bool = False
    features: str = "columns"
    header: bool | None = None
    like: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = " or ".join(MISSING)
        require(self.missing in MISSING, "tables", "--missing", known, self.missing)
        known = " or ".join(FEATURES)
        require(self.features in FEATURES, "tables", "--features", known, self.features)

    def given(self) -> dict[str, Any]:
        """Returns the options that differ from the defaults."""
        pairs = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return {name: value for name, value, default in pairs if value != default}

    def record(self, report: "TableReport") -> str:
        """Returns the options as JSON, to read these tables or similar ones again."""
        return json.dumps(self.given() | {"like": report.column_features})

    def after(self, trained: "TableOptions") -> "TableOptions":
        """Returns these options, completed from the options of the training tables.

        An option that is not given is taken from `trained`, except those in `own`, which describe
        particular tables.
        """
        own = ("nodes", "label", "split", "ignore", "add_missing_nodes")
        kept = {name: value for name, value in trained.given().items() if name not in own}
        return TableOptions(**kept | self.given())

    @property
    def names(self) -> frozenset[str]:
        """All column names that are given, in lower case."""
        single = (self.source_column, self.target_column, self.weight, self.id_column, self.label)
        listed = (*single, self.split, *self.one_hot, *self.ignore)
        return frozenset(name.lower() for name in listed if name)


@dataclass
class TableReport:
    """What was found in the tables; `notes` are the lines that are shown to the user."""

    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    added_nodes: int = 0
    isolated_nodes: int = 0
    filled_values: int = 0
    column_features: list[str] = field(default_factory=list)
    structural_features: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns ``1 row`` or ``2 rows``."""
    return f"1 {one}" if number == 1 else f"{number:,} {several or one + 's'}"
