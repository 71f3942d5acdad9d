"""GraphCL, the other systems of the paper's tables and later ones, behind one protocol.

`SYSTEMS` maps names to them.
"""

from graphcl.research.systems import (
    dgi,
    gaan,
    graphcl,
    graphmae,
    graphsage,
    shallow,
    supervised,
    trees,
    two_views,
    untrained,
)
from graphcl.research.systems.system import System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        graphcl.SYSTEM,
        untrained.RAW,
        untrained.LABEL_PROPAGATION,
        *shallow.SYSTEMS,
        dgi.TRANSDUCTIVE,
        *supervised.SYSTEMS,
        untrained.RANDOM_ENCODER,
        untrained.PROPAGATION,
        *two_views.SYSTEMS,
        graphmae.SYSTEM,
        dgi.INDUCTIVE,
        *graphsage.SYSTEMS,
        supervised.FASTGCN,
        gaan.SYSTEM,
        trees.SYSTEM,
    )
}
