"""GraphCL, the other systems of the paper's tables and later ones, behind one protocol.

`SYSTEMS` maps names to them.
"""

from graphcl.research.systems import (
    dgi,
    gaan,
    graphmae,
    graphsage,
    shallow,
    supervised,
    two_views,
    untrained,
)
from graphcl.research.systems.system import GRAPHCL, System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        GRAPHCL,
        untrained.RAW,
        untrained.LABEL_PROPAGATION,
        *shallow.SYSTEMS,
        dgi.TRANSDUCTIVE,
        *supervised.SYSTEMS[:2],
        untrained.RANDOM_ENCODER,
        untrained.PROPAGATION,
        *two_views.SYSTEMS,
        graphmae.SYSTEM,
        dgi.INDUCTIVE,
        *graphsage.SYSTEMS,
        gaan.SYSTEM,
        supervised.SYSTEMS[2],
    )
}
