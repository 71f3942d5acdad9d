"""The features of edges: further columns of a list of edges, and the age of each edge.

Columns become features by the same rules as those of a node table (`graphcl.tabular.fitting`).
Those that are named like labels or splits are left out: as features they could leak. The last
feature is the time since an edge came, if that is known (`graphcl.tabular.times`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graphcl.errors import counted, option
from graphcl.tabular import columns as table_columns
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.features import ColumnFeatures, NodeTable
from graphcl.tabular.fitting import ApplyColumns, FitColumns, kinds_given
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import AGE, Column, Preparation
from graphcl.tabular.report import ColumnOutcome, Problem, Usual, listed, outcomes
from graphcl.tabular.sources import Source


@dataclass
class EdgeFeatures:
    """The features of one relation's edges.

    Attributes:
        features: what fills those of columns; None if there are none.
        notes: lines for the user.
        fates: what became of each column.
        age: what turns the time of an edge into the last feature; None without it.
        problems: what is wrong with the columns.
    """

    features: ColumnFeatures | None = None
    notes: list[str] = field(default_factory=list)
    fates: list[ColumnOutcome] = field(default_factory=list)
    age: Column | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def preparation(self) -> Preparation | None:
        """What turns the columns into features."""
        prepared = None if self.features is None else self.features.preparation
        if self.age is None:
            return prepared
        prepared = prepared or Preparation(())
        return replace(prepared, columns=(*prepared.columns, self.age))

    @property
    def width(self) -> int:
        """Number of features of columns."""
        return 0 if self.features is None else self.features.width


@dataclass
class FoundRelation:
    """A relation in a list of edges.

    Attributes:
        name: its name.
        number: its place in the list.
        types: of both ends; empty where it could not be found out.
        how: of each end, how its type was found.
        rows: rows of the list.
        value: what the column that names relations says of it; None if there is no such column.
        features: those of its edges.
    """

    name: str
    number: int = 0
    types: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    rows: int = 0
    value: str | None = None
    features: EdgeFeatures = field(default_factory=EdgeFeatures)

    @property
    def key(self) -> str:
        """``source:name:target``."""
        return f"{self.types[0]}:{self.name}:{self.types[1]}"

    @property
    def where(self) -> str:
        """An SQL condition on the rows."""
        return "true" if self.value is None else f"r = {literal(self.value)}"


def find_features(
    duck: Duck,
    source: Source,
    found: FoundRelation,
    names: Sequence[str],
    options: TableOptions,
    age: Column | None,
) -> EdgeFeatures:
    """Finds what columns of a relation's edges become.

    Args:
        duck: the session, with the table ``edges``.
        source: the list of edges.
        found: the relation.
        names: the further columns, ``c0``, ``c1``, … of ``edges``.
        options: those of this list.
        age: what turns the times of edges into a feature; None without times.
    """
    known = options.edge_preparations
    prepared = None if known is None else known.get(found.key, Preparation(()))
    if prepared is None:
        features = _fitted(duck, source, found, names, options) if names else EdgeFeatures()
        features.age = age
        return features
    aged = next((one for one in prepared.columns if one.kind == AGE), None)
    own = replace(prepared, columns=tuple(one for one in prepared.columns if one is not aged))
    features = EdgeFeatures()
    if own.columns:
        features = _fitted(duck, source, found, names, options, own)
    if aged is not None and age is None:
        column = option("time", aged.name, of=found.name)
        said = f"{source.name}: has no times, which edges had in training; name them: {column}"
        features.problems.append(Problem(said))
    features.age = None if aged is None else age
    return features


def _fitted(
    duck: Duck,
    source: Source,
    found: FoundRelation,
    names: Sequence[str],
    options: TableOptions,
    prepared: Preparation | None = None,
) -> EdgeFeatures:
    """Finds what columns become, or what a training made of them."""
    view, left = f"edge_columns_{found.number}", dict[str, str]()
    columns = ", ".join(f"c{place} AS {quoted(name)}" for place, name in enumerate(names))
    if columns:
        duck.run(f"CREATE VIEW {view} AS SELECT {columns} FROM edges WHERE {found.where}")
    kinds = {name: source.columns[name] for name in names}
    of_edges = replace(source, relation=view, columns=kinds, nodes=None, stable=True)
    table, session = NodeTable(duck, of_edges), f"edges_{found.number}_"

    def named(keyword: str) -> list[str]:
        """Returns the columns that an option names; others are of other tables."""
        wanted = {name.strip().lower() for name in getattr(options, keyword)}
        return [name for name in names if name.strip().lower() in wanted]

    fitted: ApplyColumns | FitColumns
    if prepared is not None:
        fitted = ApplyColumns(duck, table, prepared, session)
    else:
        left = dict.fromkeys(named("ignore"), "left out, as you asked")
        for name in names:
            if what := table_columns.looks_like(source, name):
                left.setdefault(name, f"named like a {what}: left out")
        given, plain = kinds_given(source.name, named), replace(options, split=None)
        used = set(left) - set(given)
        fitted = FitColumns(
            duck, table, plain, used=used, given=given, session=session, leaks=False
        )
    roles = left | dict.fromkeys(fitted.empty, "empty: left out")
    features, notes = None if fitted.problems else fitted.features, list[str]()
    notes += [f"column {name!r} is {why}" for name, why in left.items() if why.startswith("named")]
    notes += fitted.notes
    if features is None or not features.width:
        fates = outcomes(names, (), fitted.missing, roles)
        return EdgeFeatures(None, notes, fates, problems=fitted.problems)
    made = features.preparation.features
    notes.insert(0, Usual(f"{counted(len(made), 'feature')} of each edge: {listed(made)}"))
    weight = [name for name in names if name.strip().lower() in table_columns.WEIGHTS]
    if weight and weight[0] not in left:
        notes.append(f"{weight[0]!r} is a feature; {option('weight', weight[0])} makes it a weight")
    fates = outcomes(names, features.preparation.columns, fitted.missing, roles)
    return EdgeFeatures(features, notes, fates, problems=fitted.problems)
