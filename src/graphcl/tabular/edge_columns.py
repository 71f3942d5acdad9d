"""Further columns of a list of edges become features of its edges, as those of nodes do.

A list of edges has columns of both ends, and perhaps one of weights and one of relations. What is
left describes the edges: numbers, categories, dates and texts become vectors by the same rules as
the columns of a node table (`graphcl.tabular.nodes`), and by the same preparation afterwards.
Columns that are named like labels or splits are left out: as features they could leak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular.columns import WEIGHTS, looks_like
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import NodeFeatures
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.nodes import Fitting
from graphcl.tabular.options import Fate, TableOptions, counted
from graphcl.tabular.preparation import CATEGORY, DATE, TEXT, Preparation
from graphcl.tabular.prepared import Applying
from graphcl.tabular.problems import Problem
from graphcl.tabular.sources import Source

KINDS = (("one_hot", CATEGORY), ("text", TEXT), ("date", DATE))


@dataclass
class EdgeFeatures:
    """The features of one relation's edges.

    Attributes:
        features: what fills them; None if they have none.
        notes: lines for the user.
        fates: what became of each column.
        problems: what is wrong.
    """

    features: NodeFeatures | None = None
    notes: list[str] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
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

    @staticmethod
    def picked(names: Sequence[str]) -> str:
        """Returns SQL that selects the columns for ``edges``, beside others."""
        return "".join(f", {quoted(name)} AS c{place}" for place, name in enumerate(names))

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
        listed = ", ".join(f"c{place} AS {quoted(name)}" for place, name in enumerate(self.names))
        if listed:
            self.duck.run(f"CREATE VIEW {view} AS SELECT {listed} FROM edges WHERE {where}")
        columns = {name: self.source.columns[name] for name in self.names}
        table = NodeTable(
            self.duck,
            replace(self.source, relation=view, columns=columns, nodes=None, stable=True),
        )
        session = f"edges_{number}_"
        left: dict[str, str] = {}
        found: Applying | Fitting
        if prepared is not None:
            found = Applying(self.duck, table, prepared, session=session)
        else:
            left, given = self._left_out(), self._given()
            plain = replace(self.options, split=None)
            used = set(left) - set(given)
            found = Fitting(
                self.duck, table, plain, used=used, given=given, session=session, leaks=False
            )
        made = EdgeFeatures(problems=list(found.problems))
        if found.problems or found.features is None or not found.features.width:
            made.fates = self._fates(found.missing, {}, left | self._empty(found.empty))
            return made
        made.features = found.features
        made.notes = [line.removeprefix("nodes: ") for line in found.notes]
        names = found.features.names
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        made.notes.insert(0, f"{counted(len(names), 'feature')} of each edge: {shown}")
        weight = [name for name in self.names if name.strip().lower() in WEIGHTS]
        if weight and weight[0] not in left:
            made.notes.append(f"{weight[0]!r} is a feature; --weight {weight[0]} makes it a weight")
        became = {
            column.name: (column.describe(), len(column.features))
            for column in found.features.preparation.columns
        }
        made.fates = self._fates(found.missing, became, left | self._empty(found.empty))
        return made

    def _left_out(self) -> dict[str, str]:
        """Returns the columns that are no features, and why."""
        found = dict.fromkeys(self._named("ignore"), "left out, as you asked")
        for name in self.names:
            if what := looks_like(self.source, name):
                found.setdefault(name, f"named like a {what}: left out")
        return found

    def _given(self) -> dict[str, str]:
        """Returns what the caller says of columns."""
        given: dict[str, str] = {}
        ignored = self._named("ignore")
        for option, kind in KINDS:
            for name in self._named(option):
                if name in ignored:
                    continue
                if name in given:
                    shown = "--" + option.replace("_", "-")
                    raise GraphError(
                        f"{self.source.name}: {shown}: column {name!r} is already used"
                    )
                given[name] = kind
        return given

    def _named(self, option: str) -> list[str]:
        """Returns the columns of this list that an option names; others are of other tables."""
        wanted = {name.strip().lower() for name in getattr(self.options, option)}
        return [name for name in self.names if name.strip().lower() in wanted]

    @staticmethod
    def _empty(names: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(names, "empty: left out")

    def _fates(
        self,
        missing: Mapping[str, int],
        became: Mapping[str, tuple[str, int]],
        left: Mapping[str, str],
    ) -> list[Fate]:
        fates = []
        for name in self.names:
            if name in became:
                fates.append(Fate(name, *became[name], missing.get(name, 0)))
            else:
                fates.append(Fate(name, left.get(name, "left out")))
        return fates
