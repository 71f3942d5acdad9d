"""GraphCL, the other systems of the paper's tables and later ones, behind one protocol.

`SYSTEMS` maps names to them.
"""

from graphcl.research.systems import (
    dgi,
    graphmae,
    graphsage,
    shallow,
    supervised,
    two_views,
)
from graphcl.research.systems.system import GRAPHCL, System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        GRAPHCL,
        shallow.RAW,
        shallow.LABEL_PROPAGATION,
        *shallow.SYSTEMS,
        dgi.TRANSDUCTIVE,
        *supervised.SYSTEMS[:2],
        shallow.RANDOM_ENCODER,
        shallow.PROPAGATION,
        *two_views.SYSTEMS,
        graphmae.SYSTEM,
        dgi.INDUCTIVE,
        *graphsage.SYSTEMS,
        *supervised.SYSTEMS[2:],
    )
}
