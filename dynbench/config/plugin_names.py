"""Names of the registries' plug-ins as types of configuration fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from dynbench.plugins import COMPRESSORS, DATASETS, STRATEGIES, WORKLOADS
from dynbench.plugins.policies import ROWS, plan_names

if TYPE_CHECKING:
    WorkloadName: TypeAlias = str
    DatasetName: TypeAlias = str
    PolicyName: TypeAlias = str
    StrategyName: TypeAlias = str
    CompressorName: TypeAlias = str
else:
    WorkloadName = Literal[tuple(WORKLOADS)]
    DatasetName = Literal[tuple(DATASETS)]
    # Names that say a layout too are put as both before they are validated (`layers`).
    PolicyName = Literal[plan_names("padded", *ROWS, in_train=True)]
    StrategyName = Literal[tuple(STRATEGIES)]
    CompressorName = Literal[tuple(COMPRESSORS)]

OwnClass = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*$",
        description="MODULE:CLASS or FILE.py:CLASS of your own",
    ),
]
"""A workload that no registry knows."""
