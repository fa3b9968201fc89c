"""Plans on demand: the same plan for the same step, whoever asks and in whatever order."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.schedule.plan import FloatArray, StepPlan
from dynbench.schedule.policy import Policy, Problem, make_policy


class Planner:
    """The plans of one policy, one step at a time.

    Args:
        policy_name: a name of the registry.
        problem: what is to be planned.

    Raises:
        UsageError: unknown policy, or a problem that it cannot plan.
    """

    def __init__(self, policy_name: str, problem: Problem) -> None:
        self.policy: Policy = make_policy(policy_name, problem)
        self._last: StepPlan | None = None
        self._plans: Iterator[StepPlan] = iter(())

    def plan(self, step: int) -> StepPlan:
        """The plan of optimizer step `step`, counted from 0.

        Cheap for consecutive steps and for the last one again; any other step starts anew (a policy that keeps streams
        replays them from step 0).

        Raises:
            NothingFits: the step's samples do not fit into the capacities.
        """
        last = self._last
        if last is not None and last.step == step:
            return last
        if last is None or last.step + 1 != step:
            self._plans = self.policy.plans(step)
        self._last = None
        self._last = next(self._plans)
        return self._last

    def change_speeds(self, speeds: FloatArray | None) -> None:
        """Plan for ranks of other relative speeds, shape [G], from the next step on, which must be asked for in order.

        `window` first ends the window it is in. No sample is lost or taken twice.
        """
        self.policy.change_speeds(speeds)
