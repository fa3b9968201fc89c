"""Arguments of the planner's Python interface, checked: a mistake is a line, not a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import ArrayLike

from dynbench.errors import UsageError
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import policy_class


def whole_lengths(given: ArrayLike, name: str = "lengths") -> IntArray:
    """Lengths, or other numbers of samples, as the planner wants them, shape [N]."""
    values = np.asarray(given)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise UsageError(f"{name}: shape {values.shape} of {values.dtype}", "Give one whole number per sample.")
    return values.astype(np.int64)


def whole(name: str, given: object, least: int, most: int | None = None) -> int:
    """A number of any integer type within its limits."""
    try:
        number = index(given)  # type: ignore[arg-type]  # what is no integer raises
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name}: {given!r}", f"Give a whole number {allowed}.")
    return number


def known_policies(*, capped: bool = False) -> list[str]:
    """Policies that a sampler takes; those that keep to capacities, if asked."""
    names = [name for name, entry in POLICIES.items() if entry.in_train and (entry.capped or not capped)]
    return [name for name in names if policy_class(name).fixed_batch]


def cost_model(given: CostModel | CostType) -> CostModel:
    """The cost model that is given or named."""
    if given == "measured":
        raise UsageError(
            "cost: 'measured' says no coefficients",
            "Give CostModel('measured', alpha=…, beta=…, gamma=…); dynbench probe fits them.",
        )
    return given if isinstance(given, CostModel) else CostModel(given)


def asked_capacity(given: Capacity | int | Sequence[int] | None, policy: str, layout: Layout) -> Capacity:
    """Capacities as given or by numbers, in the unit of the layout; refused for a policy that obeys none."""
    kind = Capacity if layout == "padded" else PackedCapacity
    if given is None or isinstance(given, Capacity):
        capacity = given or kind()
    elif isinstance(given, Sequence | np.ndarray):
        capacity = kind.per_rank([whole(f"capacity[{rank}]", most, 1) for rank, most in enumerate(given)])
    else:
        capacity = kind.uniform(whole("capacity", given, 1))
    if not capacity.unlimited and not POLICIES[policy].capped:
        raise UsageError(
            f"capacity: policy {policy!r} obeys no capacities",
            f"Leave capacity out, or use one of {', '.join(known_policies(capped=True))}.",
        )
    return capacity
