"""Further columns of a list of edges become features of its edges, as those of nodes do.

A list of edges has columns of both ends, and perhaps one of weights and one of relations. What is
left describes the edges: numbers, categories, dates and texts become vectors by the same rules as
the columns of a node table (`graphcl.tabular.fitting`), and by the same preparation afterwards.
Columns that are named like labels or splits are left out: as features they could leak.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from graphcl.errors import counted
from graphcl.tabular.columns import WEIGHTS, looks_like
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import ColumnFeatures, NodeTable
from graphcl.tabular.fitting import ApplyColumns, FitColumns, kinds_given
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import Preparation
from graphcl.tabular.report import ColumnOutcome, Problem, listed, outcomes
from graphcl.tabular.sources import Source


@dataclass
class EdgeFeatures:
    """The features of one relation's edges.

    Attributes:
        features: what fills them; None if they have none.
        notes: lines for the user.
        fates: what became of each column.
        problems: what is wrong.
    """

    features: ColumnFeatures | None = None
    notes: list[str] = field(default_factory=list)
    fates: list[ColumnOutcome] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def preparation(self) -> Preparation | None:
        """What turns the columns into features."""
        return None if self.features is None else self.features.preparation

    @property
    def width(self) -> int:
        """Number of features."""
        return 0 if self.features is None else self.features.width

    def table(self, rows: int) -> npt.NDArray[np.float32]:
        """Returns the features of all edges of the relation, in the order of the list."""
        assert self.features is not None
        x = np.zeros((rows, self.width), np.float32)
        self.features.fill(x)
        return x


@dataclass(frozen=True)
class EdgeColumns:
    """The further columns of a list of edges.

    Attributes:
        duck: the session; its table ``edges`` has the columns as ``c0``, ``c1``, ….
        source: the list.
        names: the columns.
        options: those of the list.
    """

    duck: Duck
    source: Source
    names: Sequence[str]
    options: TableOptions

    @property
    def picked(self) -> str:
        """SQL that selects the columns for ``edges``, beside others."""
        return "".join(f", {quoted(name)} AS c{place}" for place, name in enumerate(self.names))

    def of(
        self,
        number: int,
        where: str,
        *,
        rows: int,
        prepared: Preparation | None = None,
        fixed: bool = False,
    ) -> EdgeFeatures:
        """Returns the features of the edges of one relation.

        Args:
            number: of the relation in the list.
            where: an SQL condition on its rows.
            rows: how many there are.
            prepared: what the columns became in training.
            fixed: nothing is decided: without `prepared` edges have no features.
        """
        if not rows or (prepared is None and (fixed or not self.names)):
            return EdgeFeatures()
        view = f"edge_columns_{number}"
        columns = ", ".join(f"c{place} AS {quoted(name)}" for place, name in enumerate(self.names))
        if columns:
            self.duck.run(f"CREATE VIEW {view} AS SELECT {columns} FROM edges WHERE {where}")
        kinds = {name: self.source.columns[name] for name in self.names}
        source = replace(self.source, relation=view, columns=kinds, nodes=None, stable=True)
        table, session = NodeTable(self.duck, source), f"edges_{number}_"
        left: dict[str, str] = {}
        found: ApplyColumns | FitColumns
        if prepared is not None:
            found = ApplyColumns(self.duck, table, prepared, session)
        else:
            left, given = self._left_out(), kinds_given(self.source.name, self._named)
            plain = replace(self.options, split=None)
            used = set(left) - set(given)
            found = FitColumns(
                self.duck, table, plain, used=used, given=given, session=session, leaks=False
            )
        roles = left | dict.fromkeys(found.empty, "empty: left out")
        features = None if found.problems else found.features
        if features is None or not features.width:
            fates = outcomes(self.names, (), found.missing, roles)
            return EdgeFeatures(fates=fates, problems=found.problems)
        names = features.preparation.features
        notes = [f"{counted(len(names), 'feature')} of each edge: {listed(names)}"]
        notes += [line.removeprefix("nodes: ") for line in found.notes]
        weight = [name for name in self.names if name.strip().lower() in WEIGHTS]
        if weight and weight[0] not in left:
            notes.append(f"{weight[0]!r} is a feature; --weight {weight[0]} makes it a weight")
        fates = outcomes(self.names, features.preparation.columns, found.missing, roles)
        return EdgeFeatures(features, notes, fates)

    def _left_out(self) -> dict[str, str]:
        """Returns the columns that are no features, and why."""
        found = dict.fromkeys(self._named("ignore"), "left out, as you asked")
        for name in self.names:
            if what := looks_like(self.source, name):
                found.setdefault(name, f"named like a {what}: left out")
        return found

    def _named(self, option: str) -> list[str]:
        """Returns the columns of this list that an option names; others are of other tables."""
        wanted = {name.strip().lower() for name in getattr(self.options, option)}
        return [name for name in self.names if name.strip().lower() in wanted]
