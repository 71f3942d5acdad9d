"""What is said of tables: by the caller before they are read, and by us after."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from graphcl.errors import require
from graphcl.tabular.edges import EdgeCounts

MISSING = ("refuse", "zero", "mean")
FEATURES = ("columns", "structural", "both")


@dataclass(frozen=True)
class TableOptions:
    """What the caller says of their tables; None and empty leave it to be guessed.

    Attributes:
        nodes: the node table, as `graphcl.tabular.sources` names one; or a feature matrix.
        source_column: column of the edges' first ends.
        target_column: column of their second ends.
        weight: column of positive edge weights.
        id_column: column of the nodes' ids.
        label: column of the nodes' classes.
        split: column of train, val or test.
        one_hot: text columns to encode.
        ignore: columns of the node table to leave out.
        missing: ``refuse``, or fill in ``zero`` or the column's ``mean``.
        add_missing_nodes: nodes that only edges name become nodes, with features of zero.
        features: ``columns``, ``structural`` (made from the edges alone) or ``both``.
        header: whether delimited files begin with column names.
        like: names of features to make, in this order: those that a model was trained on. Other
            columns are left out, and a category that is not among them is none.
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
        """Returns what differs from the defaults."""
        pairs = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return {name: value for name, value, default in pairs if value != default}

    def record(self, report: "TableReport") -> str:
        """Returns, as JSON, what it takes to read these tables, or others like them, again."""
        return json.dumps(self.given() | {"like": report.column_features})

    def after(self, trained: "TableOptions") -> "TableOptions":
        """Returns these options for tables whose model was trained on others.

        What is not said is as it was in training, but for the node table, labels and split.
        """
        own = ("nodes", "label", "split", "ignore", "add_missing_nodes")
        kept = {name: value for name, value in trained.given().items() if name not in own}
        return TableOptions(**kept | self.given())

    @property
    def names(self) -> frozenset[str]:
        """Every column name that was given, in lower case."""
        single = (self.source_column, self.target_column, self.weight, self.id_column, self.label)
        listed = (*single, self.split, *self.one_hot, *self.ignore)
        return frozenset(name.lower() for name in listed if name)


@dataclass
class TableReport:
    """What was found; `notes` are the lines a person reads."""

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
