"""Other systems, the paper's tables and studies, comparisons, searches: no part of the library.

The command line reaches it through the names here alone.
"""

from graphcl.research.comparison import compare, read_systems, regimes, report_of
from graphcl.research.paper import check_datasets, check_methods, reproduce
from graphcl.research.rows import Progress, read
from graphcl.research.studies.study import Plan
from graphcl.research.trials import (
    dataset_of,
    find_system,
    repeat_method,
    summarise,
    train_baseline,
)
from graphcl.research.tuning import SEARCHED, Search, ValidationScore, tune

__all__ = [
    "SEARCHED",
    "Plan",
    "Progress",
    "Search",
    "ValidationScore",
    "check_datasets",
    "check_methods",
    "compare",
    "dataset_of",
    "find_system",
    "read",
    "read_systems",
    "regimes",
    "repeat_method",
    "report_of",
    "reproduce",
    "summarise",
    "train_baseline",
    "tune",
]
