"""What the loops of real and of virtual ranks have in common: one arm's replica, clock, memory and evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.config.schema import Config
from dynbench.engine.rank.evaluation import Evaluator
from dynbench.engine.rank.memory import MemoryMeter
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import StepTimer


@dataclass(frozen=True)
class ArmLoop:
    """The loop of one arm, but for its step; see `turns.Player`."""

    config: Config
    replica: Replica
    timer: StepTimer
    memory: MemoryMeter
    evaluator: Evaluator

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done since the last one ended."""
        self.timer.restart()

    def due(self, step: int) -> bool:
        """Whether to evaluate or save after `step`."""
        return self.evaluator.due(step)

    def evaluate(self, step: int) -> None:
        """Evaluate and save after `step`."""
        self.evaluator.after(step, self.replica.strategy, self.replica.precision)

    def interrupted(self, step: int) -> None:
        """Keep what there is after `step`, the last one that a signal left time for."""
        self.evaluator.interrupted(step, self.replica.strategy)

    def enter(self) -> None:
        """From here on, what is allocated is this arm's."""
        self.memory.enter()

    def leave(self) -> None:
        """Up to here it was."""
        self.memory.leave()
