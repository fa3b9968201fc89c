"""The planner as a torch batch sampler, for your own training loop.

Every rank makes the same plan by itself and yields its own batches; nothing is communicated. Ranks get unequal counts,
so a rank's mean loss has to be weighted before backward, or the averaged gradient is not that of the global batch:

    sampler = PlannedBatchSampler(lengths, world_size, rank, global_batch=64)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch).loss * sampler.weight(batch)

The README has whole programs for plain DDP, the Transformers Trainer and Accelerate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Sized

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from dynbench.errors import UsageError
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.planner import Planner
from dynbench.schedule.policy import REGISTRY, Problem

_STATE_VERSION = 1


class PlannedBatchSampler(Sampler[list[int]]):
    """Batches of one rank, as a policy plans them.

    Args:
        lengths: tokens of every sample as the model sees them (after truncation), shape [N].
        world_size: ranks (G).
        rank: this rank.
        global_batch: samples per step over all ranks (B).
        policy: a policy of `dynbench solve --list` that trains with a fixed global batch.
        cost: a cost model, or the name of one.
        capacity: largest batch per rank: one number, one per rank, or a `Capacity`; None for no limit.
        seed: data order; the same on every rank.
        window: global batches planned together (W).
        buffer: for `prefix`, samples held per rank (K).
        speeds: relative speed of each rank, shape [G]; None for equal ranks.

    Raises:
        UsageError: settings that cannot work, or lengths that are not positive whole numbers.
        NothingFits: while iterating, when a step's samples do not fit into the capacities.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        world_size: int,
        rank: int,
        global_batch: int,
        policy: str = "partition",
        cost: CostModel | CostType = "tokens",
        capacity: Capacity | int | Sequence[int] | None = None,
        seed: int = 0,
        window: int = 1,
        buffer: int | None = None,
        speeds: Sequence[float] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} of {world_size}", f"Ranks are 0 to {world_size - 1}.")
        if policy in REGISTRY and not REGISTRY[policy].in_train:
            raise UsageError(f"policy {policy!r} is a reference line and cannot train", "Try 'partition'.")
        problem = Problem(
            lengths=_whole_numbers(lengths),
            world_size=world_size,
            global_batch=global_batch,
            cost=cost if isinstance(cost, CostModel) else CostModel(cost),
            capacity=_capacity(capacity),
            speeds=None if speeds is None else np.asarray(speeds, dtype=np.float64),
            seed=seed,
            window=window,
            buffer=buffer,
        )
        self._planner = Planner(policy, problem)
        if not self._planner.policy.fixed_batch:
            raise UsageError(f"policy {policy!r} varies the global batch, so a batch does not tell its weight")
        self._problem, self._rank, self._policy = problem, rank, policy
        self._steps = problem.data_order().steps_per_epoch
        self._epoch = self._done = self._resume_at = 0

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches of the epoch, from where `load_state_dict` left it or from its beginning."""
        # Only a loaded state starts in mid-epoch: looking at one batch must not make the next loop skip it.
        self._done, self._resume_at = self._resume_at, 0
        begin = self._epoch * self._steps
        for step in range(self._done, self._steps):
            (ids,) = self._planner.plan(begin + step).shares[self._rank]
            # Counted before it is handed out: whoever holds the batch finds it done in `state_dict`.
            self._done = step + 1
            yield ids.tolist()

    def __len__(self) -> int:
        """Steps per epoch; the incomplete last global batch is left out."""
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; another than the present one starts at its beginning.

        Raises:
            UsageError: negative.
        """
        if epoch < 0:
            raise UsageError(f"epoch {epoch}", "Epochs are counted from 0.")
        if epoch != self._epoch:
            self._epoch, self._done, self._resume_at = epoch, 0, 0

    def weight(self, batch: int | Sized | Mapping[str, Sized]) -> float:
        """What this rank's mean loss over `batch` is multiplied with before backward: b*G/B.

        Args:
            batch: the number of samples, anything whose `len` is that (ids, labels), or a mapping of such tensors.
        """
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()))
        count = batch if isinstance(batch, int) else len(batch)
        return count * self._problem.world_size / self._problem.global_batch

    def state_dict(self, done: int | None = None) -> dict[str, object]:
        """Where the sampler stands, for `load_state_dict`.

        Args:
            done: batches of this epoch that the loop has finished. Needed with loader workers, which read ahead;
                None takes every batch handed out as finished.
        """
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "done": self._done if done is None else done,
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where another sampler of the same data and settings stood.

        Raises:
            UsageError: the state is of other data or settings (any rank's will do), or of another version.
        """
        epoch, done = state.get("epoch"), state.get("done")
        if state.get("version") != _STATE_VERSION or not isinstance(epoch, int) or not isinstance(done, int):
            raise UsageError("the sampler's state is not one of this version", "Start from the epoch's beginning.")
        if state.get("fingerprint") != self._fingerprint():
            raise UsageError(
                "the sampler's state is of other lengths, ranks, batch, policy or seed",
                "Resume with the settings of the first run.",
            )
        if done >= self._steps:
            epoch, done = epoch + 1, 0
        self._epoch, self._done, self._resume_at = epoch, done, done

    def _fingerprint(self) -> str:
        """Digest of all that decides the plans."""
        problem = self._problem
        speeds = None if problem.speeds is None else problem.speeds.tolist()
        settings = (
            self._policy,
            problem.world_size,
            problem.global_batch,
            problem.cost,
            problem.capacity,
            speeds,
            problem.seed,
            problem.window,
            problem.buffer,
        )
        return hashlib.sha256(repr(settings).encode() + problem.lengths.tobytes()).hexdigest()[:16]


def _whole_numbers(lengths: ArrayLike) -> np.ndarray:
    values = np.asarray(lengths)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise UsageError(
            f"lengths: shape {values.shape} of {values.dtype}", "Give one whole number of tokens per sample."
        )
    return values.astype(np.int64)


def _capacity(given: Capacity | int | Sequence[int] | None) -> Capacity:
    if given is None:
        return Capacity()
    if isinstance(given, Capacity):
        return given
    return Capacity.uniform(given) if isinstance(given, int) else Capacity.per_rank(given)
