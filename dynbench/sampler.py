"""The planner as a torch batch sampler, for your own training loop.

Every rank makes the same plan by itself and yields its own batches; nothing is communicated. Ranks get unequal counts,
so a rank's mean loss has to be weighted before backward, or the averaged gradient is not that of the global batch:

    sampler = PlannedBatchSampler(lengths, world_size, rank, global_batch=64)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch).loss * sampler.weight(batch)

recipes/own_loop has whole programs for plain DDP, the Transformers Trainer and Accelerate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from operator import index
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from dynbench.errors import UsageError
from dynbench.kernels.packed_attention import Boundaries
from dynbench.plugins import POLICIES
from dynbench.plugins.policies import Layout, named_plan
from dynbench.plugins.strategies import Objective
from dynbench.schedule.capacity import Capacity, PackedCapacity
from dynbench.schedule.cost import CostModel, CostType
from dynbench.schedule.plan import IntArray
from dynbench.schedule.policy import Planner, Problem, check_trainable, policy_class


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
    """Policies that a sampler takes; those that keep to capacities, if `capped`."""
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


def given_capacity(given: Capacity | int | Sequence[int] | None, policy: str, layout: Layout) -> Capacity:
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


_STATE_VERSION = 1


class PlannedBatchSampler(Sampler[list[int]]):
    """Batches of one rank, as a policy plans them.

    Args:
        lengths: tokens of every sample as the model sees them (after truncation), shape [N].
        world_size: ranks (G).
        rank: this rank.
        global_batch: samples per optimizer step over all ranks and micro-batches (B).
        policy: a policy of `dynbench solve --list` that trains with a fixed global batch; `packed` is partition under
            the layout of that name.
        cost: a cost model, or the name of one; `measured` has coefficients, so it is given as a model.
        capacity: largest batch per rank: one number, one per rank, or a `Capacity`; None for no limit. Of packed rows
            it counts tokens: numbers, or a `PackedCapacity`.
        seed: data order; the same on every rank.
        window: global batches planned together (W).
        buffer: for `prefix`, samples buffered per rank (K).
        speeds: relative speed of each rank, shape [G]; None for equal ranks.
        layout: `padded`, or `packed`: a batch is to be run as one row of real tokens, whose samples attend to
            themselves alone, and is planned by its real tokens.
        accumulate: batches of every rank per optimizer step (n), the loop's gradient accumulation steps; see `weight`.
        objective: what these are planned for: `sum` where ranks synchronise once a step (DDP, ZeRO-1), `slots` where
            they do so in every batch (FSDP).
        second: of every sample a second number, shape [N], such as its image patches or target tokens, whose cost is
            added up over the samples of a batch; None for none.
        second_weight: tokens that cost as much as one unit of it.

    Raises:
        UsageError: settings that cannot work together or at all, or lengths that are not positive whole numbers.
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
        layout: Layout | None = None,
        accumulate: int = 1,
        objective: Objective = "sum",
        second: ArrayLike | None = None,
        second_weight: float = 1.0,
    ) -> None:
        world_size = whole("world_size", world_size, 1)
        rank = whole("rank", rank, 0, world_size - 1)
        policy, layout = named_plan(policy, layout)
        check_trainable(policy)
        if not policy_class(policy).fixed_batch:
            raise UsageError(
                f"policy: {policy!r} varies the global batch, so a batch does not tell its weight",
                f"Use one of {', '.join(known_policies())}.",
            )
        problem = Problem(
            lengths=whole_lengths(lengths),
            workers=world_size,
            global_batch=whole("global_batch", global_batch, 1),
            cost=cost_model(cost),
            capacity=given_capacity(capacity, policy, layout),
            speeds=None if speeds is None else np.asarray(speeds, dtype=np.float64),
            seed=whole("seed", seed, 0),
            window=whole("window", window, 1),
            buffer=None if buffer is None else whole("buffer", buffer, 1),
            layout=layout,
            micro_batches=whole("accumulate", accumulate, 1),
            objective=objective,
            second=None if second is None else whole_lengths(second, "second"),
            second_weight=second_weight,
        )
        self._parts = whole("accumulate", accumulate, 1)
        _check_accumulation(policy, problem)
        self._planner = Planner(policy, problem)
        self._problem, self._rank, self._policy = problem, rank, policy
        self._steps = problem.data_order().steps_per_epoch
        self._epoch = self._done = self._resume_at = 0

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches of the epoch, from where `load_state_dict` left it or from its beginning."""
        # Only a loaded state starts in mid-epoch: looking at one batch must not make the next loop skip it.
        self._done = self._resume_at
        begin = self._epoch * self._steps
        for number in range(self._done, len(self)):
            step, part = divmod(number, self._parts)
            ids = self._planner.plan(begin + step).shares[self._rank][part]
            # Counted before it is handed out: whoever holds the batch finds it done in `state_dict`.
            self._done = number + 1
            yield ids.tolist()
        self._resume_at = 0

    def __len__(self) -> int:
        """Batches per epoch, n in every step; the incomplete last global batch is left out."""
        return self._steps * self._parts

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; another than the present one starts at its beginning.

        Raises:
            UsageError: negative.
        """
        epoch = whole("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch, self._done, self._resume_at = epoch, 0, 0

    def weight(self, batch: object, targets: int | None = None, group: dist.ProcessGroup | None = None) -> float:
        """What this rank's mean loss over `batch` is multiplied with before backward.

        A mean over samples: b*G*n/B, from this batch alone; the loop divides by n, the batches that it accumulates.
        A mean over target tokens: t*G/T, a collective call; of several batches per step see `target_weights`.

        Args:
            batch: the number of samples, a tensor or array whose first dimension is the batch, a mapping of tensors
                that agree in it, or the sample ids. Of a packed row, whose tensors do not tell: what `PackedCollator`
                gave, its boundaries, the number or the ids.
            targets: target tokens over which this rank's loss is a mean; None for a mean over samples.
            group: as `target_weights`.

        Raises:
            UsageError: a batch whose number of samples is not clear or not from 1 to B; or as `target_weights`.
        """
        if targets is not None:
            if self._parts > 1:
                raise UsageError(
                    f"targets: of one of the {self._parts} batches of an optimizer step",
                    "Give target_weights those of all of them.",
                )
            return self.target_weights([targets], group)[0]
        count = whole("weight: samples", _samples(batch, self._problem.packed), 1, self._problem.global_batch)
        return count * self._problem.workers * self._parts / self._problem.global_batch

    def target_weights(self, targets: Sequence[int], group: dist.ProcessGroup | None = None) -> list[float]:
        """Weights of the n batches of one optimizer step, where a batch's loss is the mean over its target tokens.

        Batch i of this rank weighs t_i*G*n/T, T being the targets of all n batches of all ranks; the loop divides by n.
        A collective call: every rank makes it once per optimizer step, before the first backward.

        Args:
            targets: target tokens of each of this rank's n batches.
            group: the data-parallel ranks; all ranks by default.

        Raises:
            UsageError: counts that are no whole numbers, none on any rank, or ranks that cannot be reached.
        """
        counts = [whole("targets", count, 0) for count in targets]
        total = _sum_over_ranks(sum(counts), self._problem.workers, group)
        if total == 0:
            raise UsageError("targets: 0 on all ranks", "A mean over no target is not a number: skip this step.")
        return [count * self._problem.workers * len(counts) / total for count in counts]

    def state_dict(self, done: int | None = None) -> dict[str, object]:
        """Where the sampler stands, for `load_state_dict`; at an epoch's end, at the beginning of the next.

        Args:
            done: batches of this epoch that the loop has finished, counted from the epoch's beginning. Needed with
                loader workers, which read ahead; None takes every batch handed out as finished.

        Raises:
            UsageError: `done` is negative or more than the epoch has.
        """
        done = self._done if done is None else whole("done", done, 0, len(self))
        ended, done = divmod(done, len(self))
        position = {"epoch": self._epoch + ended, "done": done}
        return {"version": _STATE_VERSION, "fingerprint": self._fingerprint(), **position}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where another sampler of the same data and settings stood.

        Its epoch goes on from there until it has ended or another is set; one that had ended yields nothing more.

        Raises:
            UsageError: the state is of other data or settings (any rank's will do), or of another version.
        """
        if state.get("version") != _STATE_VERSION:
            raise UsageError("the sampler's state is not one of this version", "Start from the epoch's beginning.")
        if state.get("fingerprint") != self._fingerprint():
            raise UsageError(
                "the sampler's state is of other lengths, ranks, batch, policy or seed",
                "Resume with the settings of the first run.",
            )
        epoch = whole("state['epoch']", state.get("epoch"), 0)
        done = whole("state['done']", state.get("done"), 0, len(self))
        self._epoch, self._done, self._resume_at = epoch, done, done

    def _fingerprint(self) -> str:
        """Digest of all that decides the plans."""
        problem = self._problem
        speeds = None if problem.speeds is None else problem.speeds.tolist()
        settings = (
            self._policy,
            problem.workers,
            problem.global_batch,
            problem.cost,
            problem.capacity,
            speeds,
            problem.seed,
            problem.window,
            problem.buffer,
            *(["packed"] if problem.packed else []),  # states of padded batches stay what they were
            *([self._parts, problem.objective] if self._parts > 1 else []),  # as do those of one batch per step
        )
        extra = b"" if problem.extra is None else problem.extra.tobytes()
        return hashlib.sha256(repr(settings).encode() + problem.lengths.tobytes() + extra).hexdigest()[:16]


def _check_accumulation(policy: str, problem: Problem) -> None:
    """Refuse what is no objective, and plans in which ranks would run different numbers of batches."""
    if problem.objective not in get_args(Objective):
        raise UsageError(f"objective: {problem.objective!r}", f"Use {' or '.join(get_args(Objective))}.")
    ragged = problem.objective == "sum" and not problem.packed and not problem.equal_ranks
    if problem.micro_batches != 1 and ragged and POLICIES[policy].speeds == "always":
        raise UsageError(
            f"accumulate: {problem.micro_batches} with ranks of unequal speed, of which some would run more batches",
            "Use objective='slots', under which all run as many, or leave the speeds out.",
        )


def _samples(batch: Any, packed: bool) -> object:
    """The number of samples of a batch that can be read in one way only."""
    if packed:
        known: object = batch.get("boundaries") if isinstance(batch, Mapping) else batch
        if isinstance(known, Boundaries):
            return len(known.lengths)
        if isinstance(batch, Mapping) or getattr(batch, "shape", None):
            raise UsageError(
                "weight: a packed row's tensors do not tell how many samples it holds",
                "Give all that PackedCollator gave, its boundaries, or the number of samples; where the loss is a mean "
                "over target tokens, targets= with their number.",
            )
    if isinstance(batch, Mapping):
        sizes = {name: value.shape[0] for name, value in batch.items() if getattr(value, "shape", ())}
        if len(set(sizes.values())) == 1:
            return next(iter(sizes.values()))
        what = f"a mapping with the first dimensions {sizes}"
    elif getattr(batch, "shape", ()):
        return batch.shape[0]
    elif isinstance(batch, Sequence) and all(isinstance(item, Integral) for item in batch):
        return len(batch)
    elif hasattr(batch, "__index__"):
        return batch
    else:
        what = f"a {type(batch).__name__}"
    raise UsageError(
        f"weight: {what} does not tell how many samples it holds",
        "Give the number of samples, or a tensor whose first dimension is the batch.",
    )


def _sum_over_ranks(count: int, world_size: int, group: dist.ProcessGroup | None) -> int:
    if world_size == 1:
        return count
    reached = dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
    if reached != world_size:
        raise UsageError(
            f"targets: {reached} of the sampler's {world_size} ranks can be asked",
            "Call torch.distributed.init_process_group before the loop; give the data-parallel ranks as group.",
        )
    devices = [device.partition(":")[0] for device in dist.get_backend_config(group).split(",")]
    total = torch.tensor(count, device="cpu" if "cpu" in devices else devices[0])
    dist.all_reduce(total, group=group)
    return int(total)
