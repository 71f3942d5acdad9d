"""The paper's claims beside its tables, by name; what one is, `Study` says."""

from graphcl.experiments.complexity import COMPLEXITY
from graphcl.experiments.corruption import CORRUPTION
from graphcl.experiments.course import BOUND, EPOCHS
from graphcl.experiments.criterion import CRITERION
from graphcl.experiments.study import Study
from graphcl.experiments.sweeps import BATCH, PERTURBATION, TEMPERATURE

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        PERTURBATION,
        CORRUPTION,
        TEMPERATURE,
        EPOCHS,
        BATCH,
        BOUND,
        COMPLEXITY,
        CRITERION,
    )
}
