"""Proof on samples of the user's own that those of a packed row do not see each other.

The gradient of one sample's output to the embeddings of all others has to be exactly zero, and outputs and gradients
have to agree with those of each sample alone, in fp32 without dropout. Where the run's precision is another, and with
it perhaps the kernel, the zeros are checked in that one too: of the kernel that takes the dropout of training and of
the one without, which evaluation runs, both dropping nothing.

Rows of transformers' flattening collator are compared likewise, and what is seen is recorded, where a packed run would
be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass, replace
from functools import reduce
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor, nn

from dynbench.errors import LeakFound, UsageError
from dynbench.kernels.packed_attention import Arrangement, Boundaries
from dynbench.kernels.packed_models import (
    architecture_of,
    as_any,
    first_position,
    flattened_row,
    use_flattened_rows,
    use_packed_rows,
)

TOLERANCE = 1e-5
"""Of outputs and gradients, of the largest of them: in another order, fp32 sums are off by about 1e-7."""
HALF_TOLERANCE = 0.05
"""The same of half precision against fp32."""
HINT = (
    "Nothing was trained. Keep the padded layout (workload.layout=padded), and report this with what `dynbench doctor` "
    "shows."
)
FP32 = "fp32"
Pass = Callable[[], Sequence[Tensor]]
"""A forward pass: what it gives for each sample, without what pads."""


@dataclass(frozen=True)
class Observed:
    """What a forward pass over some samples showed.

    Args:
        outputs: of each sample.
        gradients: of each sample's output to all embeddings of the pass that it came of, [rows, tokens, channels].
        of_parameters: of all outputs jointly to every parameter, zeros where there is none, all in one.
    """

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    of_parameters: Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a packed pass is from those of the samples alone."""

    foreign_gradient: float = 0.0
    """Largest gradient of a sample's output to another sample's embeddings."""
    output_difference: float = 0.0
    """Largest difference of outputs, of the largest output."""
    gradient_difference: float = 0.0
    """Largest difference of gradients to a sample's own embeddings, of the largest; or of those to all parameters
    together, by their norms, if that is more."""

    def worst(self, other: Seen) -> Seen:
        """The larger of each."""
        return Seen(*(_larger(pair) for pair in zip(astuple(self), astuple(other), strict=True)))

    def fault(self, tolerance: float = TOLERANCE) -> str | None:
        """What is wrong, in words; None where nothing is. What is no number is wrong too."""
        if self.foreign_gradient != 0:
            seen = f"{self.foreign_gradient:.3g}"
            return f"the gradient of a sample's output to another sample's embeddings is {seen}, not 0"
        for what, difference in (("outputs", self.output_difference), ("gradients", self.gradient_difference)):
            if not difference <= tolerance:
                return f"{what} differ from those of each sample alone by {difference:.3g}, {tolerance:g} allowed"
        return None


def check_packed_rows(
    model: nn.Module, samples: Sequence[Sequence[int]], autocast: torch.dtype | None = None
) -> dict[str, object]:
    """Compare a model on samples packed with itself on each of them alone; it takes packed rows afterwards.

    Args:
        model: of transformers, in fp32 on its device, not prepared yet.
        samples: token ids of each, at least two; the longest that will come among them.
        autocast: the half precision that training is in, if it is.

    Returns:
        What was seen, ready for JSON.

    Raises:
        LeakFound: they differ.
        UsageError: a model that is not known to be right on packed rows, or fewer than two samples.
    """
    ordered = sorted(samples, key=len)
    kernels: dict[str, set[str]] = {}

    def passes(row: Tensor, boundaries: Boundaries, precision: str) -> Iterator[Pass]:
        ran = kernels[precision] = set()
        # Kernels that dropout decides on are of half precision.
        for arrangement, drops in product(get_args(Arrangement), (False,) if precision == FP32 else (False, True)):
            with as_in_training(model) if drops else nullcontext():
                yield row_pass(model, replace(boundaries, arrangement=arrangement, checked=ran), input_ids=row)

    found = _compared(model, ordered, autocast, use_packed_rows, passes)
    report = _report(ordered, found, {precision: sorted(ran) for precision, ran in kernels.items()}, FP32)
    for precision, seen in found.items():
        if fault := seen.fault(_tolerance(precision)):
            row_of = f"{type(model).__name__}: a packed row of {report['lengths']} tokens in {precision}"
            raise LeakFound(f"{row_of}: {fault}", HINT)
    return report


def look_at_flattened_rows(
    model: nn.Module, samples: Sequence[Sequence[int]], autocast: torch.dtype | None = None, *, use_cache: bool = False
) -> dict[str, object]:
    """As `check_packed_rows`, of a flattened row: nothing is refused, and what is wrong is among what was seen.

    Args:
        model: of transformers, in fp32 on its device, not prepared yet; it takes flattened rows afterwards.
        samples: token ids of each, at least two; the longest that will come among them.
        autocast: the half precision that training is in, if it is.
        use_cache: as `use_flattened_rows`.

    Returns:
        What was seen, ready for JSON; `leak` says what is wrong, None where nothing is, and differences are those of
        the precision in which it shows, else of fp32.

    Raises:
        UsageError: as `use_flattened_rows`, or fewer than two samples.
    """

    def passes(row: Tensor, boundaries: Boundaries, _: str) -> Iterator[Pass]:
        places = flattened_row(samples, first_position(model.config))["position_ids"].to(row.device)
        yield row_pass(model, boundaries, input_ids=row, position_ids=places)

    found = _compared(model, samples, autocast, lambda model: use_flattened_rows(model, use_cache=use_cache), passes)
    faults = {precision: fault for precision, seen in found.items() if (fault := seen.fault(_tolerance(precision)))}
    shown = next(iter(faults), FP32)
    report = _report(samples, found, {key: [as_any(model).config._attn_implementation] for key in found}, shown)
    return {**report, "leak": f"in {shown}, {faults[shown]}" if faults else None}


def _compared(
    model: nn.Module,
    samples: Sequence[Sequence[int]],
    autocast: torch.dtype | None,
    prepare: Callable[[nn.Module], object],
    passes: Callable[[Tensor, Boundaries, str], Iterable[Pass]],
) -> dict[str, Seen]:
    """By precision, how far a model on samples in one row is from itself on each of them alone.

    Args:
        model: in fp32 on its device.
        samples: token ids of each, in the order of the row.
        autocast: a precision besides fp32, if there is one.
        prepare: makes the model take rows.
        passes: of the row, int64 [1, T], its boundaries and a precision; of several the worst counts.
    """
    if len(samples) < 2:
        raise UsageError(
            f"a check of rows: {len(samples)} of at least 2 samples",
            "Give several of your samples, the longest among them: one alone has no other to see.",
        )
    device = next(model.parameters()).device
    row = torch.cat([torch.as_tensor(sample) for sample in samples]).long().to(device)[None]
    boundaries, found = Boundaries(tuple(map(len, samples)), device), dict[str, Seen]()
    with evaluating(model):
        alone = observe(model, alone_pass(model, row, boundaries))
        prepare(model)
        for half in dict.fromkeys((None, autocast)):
            precision = FP32 if half is None else str(half).removeprefix("torch.")
            seen = [
                compare(observe(model, forward, half), alone, boundaries.lengths)
                for forward in passes(row, boundaries, precision)
            ]
            found[precision] = reduce(Seen.worst, seen)
    return found


def _report(
    samples: Sequence[Sequence[int]], found: Mapping[str, Seen], kernels: Mapping[str, list[str]], shown: str
) -> dict[str, object]:
    """What was seen, ready for JSON; differences are those of the precision `shown`."""
    known = {"lengths": list(map(len, samples)), "precisions": list(found), "kernels": kernels}
    return {**known, **asdict(found[shown]), "tolerance": _tolerance(shown)}


def _tolerance(precision: str) -> float:
    return TOLERANCE if precision == FP32 else HALF_TOLERANCE


def alone_pass(model: Any, row: Tensor, boundaries: Boundaries) -> Pass:
    """Each sample of a packed row [1, T] alone, through a model that was not prepared.

    Not padded: where positions depend on the longest sample that comes with one (dynamic RoPE), padded batches are
    wrong in the same way as rows.
    """
    samples = torch.split(row, list(boundaries.lengths), dim=1)
    if not architecture_of(model).causal:
        return lambda: [model(input_ids=sample).logits[0] for sample in samples]
    return lambda: [model.base_model(input_ids=sample, use_cache=False).last_hidden_state[0] for sample in samples]


def row_pass(model: Any, boundaries: Boundaries, **row: Tensor) -> Pass:
    """A row through a model that was prepared: logits of a classifier, else the states of all tokens."""
    if not architecture_of(model).causal:
        return lambda: list(model(**row, boundaries=boundaries).logits)
    states = model.base_model
    return lambda: states(**row, boundaries=boundaries).last_hidden_state[0].split(list(boundaries.lengths))


def observe(model: Any, forward: Pass, half: torch.dtype | None = None) -> Observed:
    """Outputs and gradients of a forward pass; parameters keep the gradients that they have.

    Each sample's output is weighed by numbers that depend on its place alone, so that passes can be compared.

    Args:
        model: of transformers, in evaluation mode.
        forward: runs it; tokens are embedded once, or once for each sample.
        half: the half precision in which it is run; None for the model's own.
    """
    embedded: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> Tensor:
        embedded.append(output if output.requires_grad else output.detach().requires_grad_())
        return embedded[-1]

    handle = model.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.autocast(model.device.type, dtype=half) if half else nullcontext():
            outputs = list(forward())
    finally:
        handle.remove()
    scores = [(output * _weights(place, output)).sum() for place, output in enumerate(outputs)]
    gradients = [
        torch.autograd.grad(score, embedded[place % len(embedded)], retain_graph=True)[0]
        for place, score in enumerate(scores)
    ]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(torch.stack(scores).sum(), parameters, allow_unused=True)
    whole = [torch.zeros_like(each) if one is None else one for each, one in zip(parameters, found, strict=True)]
    return Observed([output.detach() for output in outputs], gradients, torch.cat([one.flatten() for one in whole]))


def _weights(place: int, output: Tensor) -> Tensor:
    drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(place))
    return drawn.to(output.device, output.dtype)


def compare(packed: Observed, apart: Observed, lengths: Sequence[int]) -> Seen:
    """How far a packed pass is from one that keeps samples apart.

    Args:
        packed: its gradients are of one row, [1, T, channels].
        apart: its gradients are of each sample alone, [1, length, channels].
        lengths: tokens of each sample, by which they are separated: not what the packed pass was given.
    """
    foreign, own, theirs, end = 0.0, [], [], 0
    for place, length in enumerate(lengths):
        begin, end = end, end + length
        gradient = packed.gradients[place][0]
        foreign = _larger((foreign, _largest((gradient[:begin], gradient[end:]))))
        own.append(gradient[begin:end])
        theirs.append(apart.gradients[place][0])
    of_parameters = float((packed.of_parameters - apart.of_parameters).norm() / apart.of_parameters.norm())
    return Seen(foreign, _difference(packed.outputs, apart.outputs), _larger((_difference(own, theirs), of_parameters)))


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference over samples, of the largest value expected."""
    differences = [a.double() - b.double() for a, b in zip(found, expected, strict=True)]
    return _largest(differences) / (_largest(expected) or 1.0)


def _largest(tensors: Sequence[Tensor]) -> float:
    """Largest magnitude in tensors, some of which may be empty."""
    return _larger([float(tensor.abs().max()) for tensor in tensors if tensor.numel()])


def _larger(values: Sequence[float]) -> float:
    """The largest, or what is no number if one is none: `max` would depend on their order."""
    return math.nan if any(math.isnan(value) for value in values) else max(values, default=0.0)


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """A model in evaluation whose attention gets the rates of training; nothing else drops anything."""
    model.train()
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    try:
        yield
    finally:
        model.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and as it was afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
