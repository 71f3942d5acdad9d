"""The paper's claims beyond its tables, each as a `Study`; `STUDIES` maps names to them."""

from graphcl.research.paper.studies.complexity import COMPLEXITY
from graphcl.research.paper.studies.corruption import CORRUPTION
from graphcl.research.paper.studies.criterion import CRITERION
from graphcl.research.paper.studies.epochs import BOUND, EPOCHS
from graphcl.research.paper.studies.study import Study
from graphcl.research.paper.studies.sweeps import BATCH, PERTURBATION, TEMPERATURE

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
