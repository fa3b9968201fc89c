"""Compressing what a strategy sends: what that took, what it left out, and what is added to the next step.

Error feedback: Seide et al., 2014; Karimireddy et al., 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.clock import Clock
from dynbench.compress.base import Compressor
from dynbench.plugins import options_of
from dynbench.plugins.compressors import CompressionOptions
from dynbench.runs.records import COMPRESSES, GRAD_MAX_ERROR, GRAD_REL_ERROR, Column
from dynbench.units import mb
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Part, Segment
from dynbench.wire.traffic import Spans

if TYPE_CHECKING:
    from dynbench.config.schema import Compress


ERROR_COLUMNS: tuple[Column, ...] = (
    GRAD_REL_ERROR,
    GRAD_MAX_ERROR,
    Column("grad_cos_sim", "number", "", "Cosine of the angle between the two; likewise."),
    Column("residual_norm", "number", "", "2-norm of what compression has left out so far; likewise."),
)


class Error:
    """Sums over what was averaged in a step."""

    def __init__(self) -> None:
        self.measured = False
        self._sums, self._most = torch.zeros(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

    def add(self, exact: Tensor, found: Tensor, holders: dist.ProcessGroup | None = None) -> None:
        """A flat gradient's mean, and what came of it, both of shape [n].

        Args:
            exact: the mean.
            found: what came of it.
            holders: the ranks that hold a part of both each, all of which is counted on each of them, by collectives
                that are not counted; None where this rank has all of it.
        """
        a, b = exact.double(), found.double()
        apart = a - b
        sums = torch.stack([apart.square().sum(), a.square().sum(), b.square().sum(), a @ b])
        most = torch.stack([torch.cat([each.new_zeros(1), each.abs()]).amax() for each in (a, apart)])
        if holders is not None:
            dist.all_reduce(sums, group=holders)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=holders)
        self._sums += sums.cpu()
        self._most = torch.maximum(self._most, most.cpu())
        self.measured = True

    def row(self, residual_norm: float) -> dict[str, object]:
        """The values of the columns; none where nothing was measured."""
        if not self.measured:
            return dict.fromkeys(column.name for column in ERROR_COLUMNS)
        difference, exact, found, product = self._sums.tolist()
        largest, largest_difference = self._most.tolist()
        both = (exact * found) ** 0.5
        return {
            GRAD_REL_ERROR.name: (difference / exact) ** 0.5 if exact else None,
            GRAD_MAX_ERROR.name: largest_difference / largest if largest else None,
            "grad_cos_sim": product / both if both else None,
            "residual_norm": residual_norm,
        }


def exact_mean(channel: Channel, flat: Tensor) -> Tensor:
    """The mean over ranks as it is, by an all-reduce that is not counted."""
    exact = flat.clone().div_(channel.world_size)
    dist.all_reduce(exact, group=channel.group)
    return exact


class Residuals:
    """What this rank has not yet sent of every parameter, in float32; how gradients are cut may change."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        """Of the whole parameter, shape [n]."""

    def corrected(self, part: Part, gradient: Tensor) -> Tensor:
        """A gradient, shape [numel], with what was left out before: a view of the residual, to be taken from."""
        return self.of(part, gradient).add_(gradient)

    def of(self, part: Part, like: Tensor) -> Tensor:
        """The residual of a part, shape [numel], where a tensor is."""
        whole = self.by_name.get(part.name)
        whole = torch.zeros(part.whole, device=like.device) if whole is None else whole.to(like.device)
        self.by_name[part.name] = whole
        return whole[part.start : part.start + part.numel]

    @property
    def nbytes(self) -> int:
        """Memory."""
        return sum(whole.numel() * whole.element_size() for whole in self.by_name.values())

    def norm(self) -> float:
        """2-norm of all residuals."""
        return float(sum(float(whole.double().square().sum()) for whole in self.by_name.values()) ** 0.5)


class SecondResiduals:
    """What this rank has left out of the means that it sent, of the parts that it averages."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, int, int], Tensor] = {}

    def corrected(self, part: Part, mean: Tensor) -> Tensor:
        """As of the first stage."""
        key = (part.name, part.start, part.numel)
        if key not in self._left:
            self._left[key] = torch.zeros(part.numel, device=mean.device)
        self._left[key] = self._left[key].to(mean.device)
        return self._left[key].add_(mean)

    def hand_over(self, cuts: Sequence[Sequence[Part]], rank: int, first: Residuals, like: Tensor) -> None:
        """What was left out of parts that this rank averages no more goes to what it sends of them as one of all ranks.

        Args:
            cuts: parts of the pieces of each rank; of one piece for all, where there is no second stage.
            rank: this one.
            first: what it has not yet sent.
            like: a tensor where gradients are.
        """
        sizes = {part.name: part.whole for piece in cuts for part in piece}
        own = {(part.name, part.start, part.numel) for part in cuts[rank]} if len(cuts) > 1 else set()
        for key in [key for key in self._left if key[0] in sizes and key not in own]:
            name, start, numel = key
            part = Part(name, start, 0, numel, sizes[name])
            first.of(part, like).add_(self._left.pop(key).to(like.device), alpha=len(cuts))

    @property
    def nbytes(self) -> int:
        """Memory."""
        return sum(left.numel() * left.element_size() for left in self._left.values())

    def state(self) -> Mapping[str, Tensor]:
        """Residuals by first element, number of elements, and parameter."""
        return {f"{start}.{numel}.{name}": left for (name, start, numel), left in self._left.items()}


def settle(residual: Tensor) -> None:
    """Forget what is not finite: it was sent, and would come back for ever."""
    residual.nan_to_num_(0.0, 0.0, 0.0)


COMPRESS_COLUMNS: tuple[Column, ...] = (
    COMPRESSES,
    Column("compress_ms", "number", "ms", "Writing what is sent, error feedback included."),
    Column("decompress_ms", "number", "ms", "Reading what was received and averaging it."),
    Column("extra_collectives", "integer", "", "Collectives beside those that carry what was compressed."),
    Column("extra_collective_ms", "number", "ms", "Time from their calls to their completion."),
    Column("payload_bytes", "integer", "B", "What this rank wrote of gradients, those of small parameters among it."),
    Column("index_bytes", "integer", "B", "Of what this rank wrote, what says which elements are sent."),
    Column("density", "number", "", "Elements sent over elements of what was compressed; none where nothing was."),
    Column("residual_mb", "number", "MB", "Memory of what compression has left out so far."),
)


def average(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Their means over ranks, in place; of one type, and of the same shapes on all ranks."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(channel.world_size)
    channel.all_reduce(flat).wait()
    for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


class Common(TypedDict, total=False):
    """Arguments that all of them take."""

    error_feedback: bool
    start_step: int
    min_elements: int
    seed: int


class Compressing(Compressor):
    """Knows which parameters are sent as they are, and keeps what compression leaves out of the others.

    Args:
        error_feedback: keep what compression left out and add it to the next gradient.
        start_step: how often every parameter is averaged as it is before anything is compressed.
        min_elements: parameters of fewer elements are always sent as they are.
        seed: of what is drawn, equal on all ranks.
    """

    columns = (*COMPRESS_COLUMNS, *ERROR_COLUMNS)

    def __init__(
        self, *, error_feedback: bool = True, start_step: int = 0, min_elements: int = 1024, seed: int = 0
    ) -> None:
        super().__init__()
        self.error_feedback = error_feedback
        self.start_step, self.min_elements, self.seed = start_step, min_elements, seed
        self._residuals = Residuals()
        self._steps: dict[str, int] = {}
        self._times, self._counts, self._error = Spans(Clock()), Counter[str](), Error()
        self._sends_whole = False
        """Whether a gradient of the step was sent as it is because of `start_step`."""
        self.error_every = 0
        """Of how many averages of a parameter the error of one is measured; 0 measures none."""

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """The mean over ranks of `flat`, shape [n], in place; equal to the bit on all ranks."""
        with self._step_of(channel, flat, segments) as exact:
            self._mean(channel, flat, segments)
            if exact is not None:
                self._error.add(exact, flat)

    def mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """This rank's part of that mean into `shard`, shape [n/G]."""
        with self._step_of(channel, flat, segments) as exact:
            self._mean_shard(channel, flat, segments, shard)
            if exact is not None:
                self._error.add(exact.view(channel.world_size, -1)[channel.rank], shard.view(-1), channel.group)

    @contextmanager
    def _step_of(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> Iterator[Tensor | None]:
        """Within it these parameters are averaged, once more; yields the exact mean where the error is measured."""
        self._times.clock = channel.ledger.clock
        measured = self.error_every > 0 and any(self._step(each.name) % self.error_every == 0 for each in segments[:1])
        yield exact_mean(channel, flat) if measured else None
        for segment in segments:
            self._steps[segment.name] = self._step(segment.name) + 1

    @abstractmethod
    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """As `mean`."""

    def _mean_shard(self, channel: Channel, flat: Tensor, segments: Sequence[Segment], shard: Tensor) -> None:
        """As `mean_shard`; where it is no less work, cut from the whole mean."""
        self._mean(channel, flat, segments)
        shard.view(-1).copy_(flat.view(channel.world_size, -1)[channel.rank])

    def configured(self, settings: Compress | None) -> None:
        """Take what the `compress` section says of all of them; None is the defaults."""
        options = options_of(settings, CompressionOptions)
        self.settings = settings
        self.start_step, self.min_elements, self.seed = options.start_step, options.min_elements, options.shared_seed
        self.error_every = options.error_every

    def _compressed(self, segments: Iterable[Segment]) -> set[str]:
        """Names of the parameters that are not sent as they are this time."""
        found = set()
        for segment in segments:
            late = self._step(segment.name) < self.start_step
            self._sends_whole |= late
            if not late and segment.numel >= max(1, self.min_elements):
                found.add(segment.name)
        return found

    def _step(self, name: str) -> int:
        """How often a parameter was averaged."""
        return self._steps.get(name, 0)

    def _corrected(self, part: Part, flat: Tensor) -> Tensor:
        """A gradient in float32, shape [numel]: with error feedback a view of its residual, to which it was added."""
        given = part.of(flat)
        return self._residuals.corrected(part, given) if self.error_feedback else given.float()

    def _counted(self, elements: int, sent: int, index_bytes: int = 0) -> None:
        """So many of the elements of a parameter are sent, and so many bytes say which."""
        self._counts.update(elements=elements, sent=sent, index_bytes=index_bytes)

    @contextmanager
    def _beside(self, counts: bool = True) -> Iterator[None]:
        """A collective is waited for within, and counts as an extra one, or not."""
        with self._times.of("extra_collective_ms") if counts else nullcontext():
            self._counts["extra_collectives"] += counts
            yield

    @property
    def residual_bytes(self) -> int:
        """Memory of what was left out so far."""
        return self._residuals.nbytes

    def row(self) -> Mapping[str, object]:
        """Of the step that ended."""
        counts, self._counts = self._counts, Counter()
        error, self._error = self._error, Error()
        whole, self._sends_whole = self._sends_whole, False
        spent = self._times.take_ms()
        return {
            COMPRESSES.name: int(not whole),
            **{name: spent[name] for name in ("compress_ms", "decompress_ms", "extra_collective_ms")},
            **{name: counts[name] for name in ("extra_collectives", "payload_bytes", "index_bytes")},
            "density": counts["sent"] / counts["elements"] if counts["elements"] else None,
            "residual_mb": mb(self.residual_bytes),
            **error.row(self._residuals.norm() if error.measured else 0.0),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """What this rank has not sent yet, by stage and parameter."""
        return {f"residual.{name}": residual for name, residual in self._residuals.by_name.items()}


class OfWhole(Compressing):
    """Averages parameters as a whole, by collectives of its own; a shard is cut from the whole mean."""

    def _mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """Parameters that are sent as they are, then the others."""
        names = self._compressed(segments)
        chosen = [segment for segment in segments if segment.name in names and self._fits(segment)]
        taken = {segment.name for segment in chosen}
        others = [segment for segment in segments if segment.name not in taken and segment.numel]
        with self._times.of("compress_ms"):
            items = self._prepared(chosen, flat)
        if others:
            with self._beside(bool(chosen)):
                average(channel, [segment.of(flat).view(-1) for segment in others])
        if chosen:
            self._average(channel, flat, items)

    def _fits(self, segment: Segment) -> bool:
        """Whether a parameter becomes smaller; else it is sent as it is."""
        return True

    @abstractmethod
    def _prepared(self, segments: Sequence[Segment], flat: Tensor) -> list[Any]:
        """What the collectives work on, of each parameter."""

    @abstractmethod
    def _average(self, channel: Channel, flat: Tensor, items: list[Any]) -> None:
        """The means of these parameters into `flat`, shape [n]."""


def feedback_of(settings: Compress | None, usual: bool) -> bool:
    """Whether there is error feedback: as the settings say, or as is usual."""
    chosen = options_of(settings, CompressionOptions).error_feedback
    return usual if chosen == "auto" else chosen
