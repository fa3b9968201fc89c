"""What the loops of real and of virtual ranks have in common: one arm's replica, clock, memory and evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from dynbench.config.schema import Config
from dynbench.engine.rank.batch_norm import average_statistics
from dynbench.engine.rank.epochs import Epochs
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
    epochs: Epochs

    def restart(self) -> None:
        """Begin the next step now, leaving out what was done since the last one ended."""
        self.timer.restart()

    def due(self, step: int) -> bool:
        """Whether to evaluate or save after `step`, or an epoch ends with it."""
        return self.evaluator.due(step) or self.epochs.ends(step)

    def evaluate(self, step: int) -> None:
        """Evaluate and save after `step`, and say what came of the epoch that it ends."""
        self.make_statistics_one()
        found = self.evaluator.after(step, self.replica.strategy, self.replica.precision)
        self.epochs.end(step, found)

    def make_statistics_one(self) -> None:
        """Give all ranks one set of batch normalisation's running statistics."""
        trained, sum_over_ranks = self.replica.take_trained(), self.evaluator.sum_over_ranks
        average_statistics(self.replica.strategy.model, trained, sum_over_ranks)

    def is_between_steps(self) -> bool:
        """Whether what `interrupted` keeps is whole: the weights of the last step, or those where ranks last met."""
        return not self.replica.stepping or self.replica.strategy.steps_apart

    def interrupted(self, step: int) -> None:
        """Keep what there is after `step`, the last one that a signal left time for: statistics of this rank's own."""
        self.evaluator.interrupted(step, self.replica.strategy)

    def enter(self) -> None:
        """From here on, what is allocated is this arm's."""
        self.memory.enter()

    def leave(self) -> None:
        """Up to here it was."""
        self.memory.leave()
