"""A packed row: where its samples are, how one is made, and attention over it that keeps samples apart.

Every token sees the tokens of its own sample, and no other.

Registered with transformers' attention interface under a name of ours, without a mask function, so that transformers
builds no mask. Boundaries come as a keyword argument through the model's forward pass; nothing is read from position
ids. Where a kernel takes boundaries, of torch or of flash-attention 2, on GPUs in half precision, it gets the row as it
is. Elsewhere `torch.nn.functional.scaled_dot_product_attention` gets the real tokens in one of two arrangements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.errors import UsageError

CPU = torch.device("cpu")
NO_TARGET = -100
"""Label of a token that is not to be predicted: transformers' losses leave it out."""
Arrangement = Literal["by_length", "repadded"]
"""How attention that knows no boundaries is given the samples: those of equal length at once, a call for each length,
or all at once, padded to the longest."""


@dataclass(frozen=True)
class Boundaries:
    """Where the samples of a packed row are; known to the host, so that nothing waits for a device.

    Args:
        lengths: tokens of each sample in the order of the row, n of them, each at least 1. Attention is cheapest where
            equal lengths follow each other.
        device: where the row is.
        arrangement: for attention that knows no boundaries; None is whichever is cheaper.
        checked: of a check, for whose sake attention drops nothing of what it would: the names of all that ran. None
            in training.

    Raises:
        ValueError: no sample, or an empty one.
    """

    lengths: tuple[int, ...]
    device: torch.device = CPU
    arrangement: Arrangement | None = None
    checked: set[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"a packed row of samples of {list(self.lengths)} tokens")

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Boundaries:
        """The same for a row on another device, which nothing has to be sent to later."""
        if torch.device(device) == self.device:
            return self
        moved = replace(self, device=torch.device(device))
        moved.__dict__["offsets"] = self.offsets.to(device, non_blocking=non_blocking)
        return moved

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(self.lengths)

    @cached_property
    def tokens(self) -> int:
        """Of all samples (T)."""
        return sum(self.lengths)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """How many samples of which length follow each other, in the order of the row."""
        return tuple((len(list(same)), length) for length, same in groupby(self.lengths))

    @cached_property
    def offsets(self) -> Tensor:
        """Where the samples begin, and where the last one ends, int32 [n + 1]."""
        ends = torch.tensor(self.lengths).cumsum(0)
        return torch.nn.functional.pad(ends, (1, 0)).to(self.device, torch.int32)

    @cached_property
    def starts(self) -> Tensor:
        """Where the samples begin, int64 [n]."""
        return self.offsets[:-1].long()

    @cached_property
    def sample(self) -> Tensor:
        """The sample of each token, from 0, int64 [T]."""
        samples = torch.arange(len(self.lengths), device=self.device)
        return torch.repeat_interleave(samples, self.offsets.diff(), output_size=self.tokens)

    @cached_property
    def positions(self) -> Tensor:
        """Each token's place in its sample, from 0, int64 [T]."""
        return torch.arange(self.tokens, device=self.device) - self.starts[self.sample]

    @cached_property
    def slots(self) -> Tensor:
        """Each token's place where the samples are padded to the longest, all in one, int64 [T]."""
        return self.sample * self.longest + self.positions

    @cached_property
    def valid(self) -> Tensor:
        """Which of these places hold a token, bool [n, longest]."""
        return torch.arange(self.longest, device=self.device) < self.offsets.diff()[:, None]


class PackedCollator:
    """Makes one packed row of the samples of a batch, for a model that `use_packed_rows` prepared.

    Takes what transformers' collators take: mappings with `input_ids` and, where the model is to learn, `labels`, a
    class or one label per token, and `token_type_ids` where tokenizers give them. Samples come in order of their
    lengths, shortest first, and so do the labels.
    """

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The row of at least one sample.

        Returns:
            `input_ids`, int64 [1, T]; `boundaries`; and `labels`: classes, int64 [n], or of each token, int64 [1, T],
            the first of every sample `NO_TARGET`, because a causal model would tell it from another sample. Where
            samples have them, `token_type_ids`, int64 [1, T].

        Raises:
            UsageError: samples that are padded.
        """
        if any(not all(sample.get("attention_mask", ())) for sample in samples):
            raise UsageError(
                "a packed row of samples whose attention_mask leaves tokens out", "Tokenise without padding."
            )
        ordered = sorted(samples, key=lambda sample: len(sample["input_ids"]))
        tokens = [torch.as_tensor(sample["input_ids"]) for sample in ordered]
        batch: dict[str, Any] = {
            "input_ids": torch.cat(tokens).long()[None],
            "boundaries": Boundaries(tuple(map(len, tokens))),
        }
        if "token_type_ids" in ordered[0]:
            kinds = [torch.as_tensor(sample["token_type_ids"]) for sample in ordered]
            batch["token_type_ids"] = torch.cat(kinds).long()[None]
        if "labels" in ordered[0]:
            labels = [torch.as_tensor(sample["labels"]) for sample in ordered]
            batch["labels"] = torch.stack(labels) if labels[0].ndim == 0 else _targets(labels, batch["boundaries"])
        return batch


def _targets(labels: Sequence[Tensor], boundaries: Boundaries) -> Tensor:
    """Labels of all tokens, int64 [1, T], without those that another sample's last token would have to tell."""
    joined = torch.cat(list(labels)).long()
    joined[boundaries.starts] = NO_TARGET
    return joined[None]


HALF = (torch.float16, torch.bfloat16)
MOST_CHANNELS = 256
"""Of a head, that these kernels take."""
LEAST_CAPABILITY = 8
"""Compute capability from which they run (Ampere)."""
TORCH_MULTIPLE = 8
"""Of the channels of a head in torch's kernel; flash-attention pads others itself."""


class Form(NamedTuple):
    """What attention is to do beside its states.

    Args:
        causal: tokens see earlier ones only.
        window: tokens see others closer than this only; None for any.
        scale: of the scores; None is 1 / sqrt(channels).
        dropout: probability of dropping an attention weight.
    """

    causal: bool
    window: int | None
    scale: float | None
    dropout: float


Kernel = Callable[[Tensor, Tensor, Tensor, Boundaries, Form], Tensor]
"""Attention of every sample to itself: of states [T, (key) heads, channels] the result, [T, heads, channels]."""


def variable_length_kernel(query: Tensor, dropout: float) -> Kernel | None:
    """The kernel for such states, which autocast may have made half precision; None where there is none.

    Args:
        query: [T, heads, channels].
        dropout: of attention weights, which torch's kernel does not know.
    """
    if query.device.type != "cuda" or query.dtype not in HALF or query.shape[-1] > MOST_CHANNELS:
        return None
    if torch.cuda.get_device_capability(query.device)[0] < LEAST_CAPABILITY:
        return None
    if not dropout and query.shape[-1] % TORCH_MULTIPLE == 0 and _torch_has_one():
        return torch_kernel
    return flash_attention_2 if _flash_attention_is_there() else None


def torch_kernel(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, form: Form) -> Tensor:
    """`torch.nn.attention.varlen`, without dropout."""
    from torch.nn.attention.varlen import varlen_attn

    offsets, longest = boundaries.offsets, boundaries.longest
    attended = varlen_attn(
        *(query.contiguous(), key.contiguous(), value.contiguous(), offsets, offsets, longest, longest),
        scale=form.scale,
        window_size=sides(form.causal, form.window),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, Tensor), "no other output is requested"
    return attended


def flash_attention_2(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, form: Form) -> Tensor:
    """`flash_attn_varlen_func` of the package flash-attn 2."""
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]  # where it is installed

    offsets, longest = boundaries.offsets, boundaries.longest
    attended: Tensor = flash_attn_varlen_func(
        *(query, key, value, offsets, offsets, longest, longest),
        dropout_p=form.dropout,
        softmax_scale=form.scale,
        causal=form.causal,
        window_size=sides(form.causal, form.window),
    )
    return attended


def sides(causal: bool, window: int | None) -> tuple[int, int]:
    """How many tokens before and after its own place a token sees; -1 for any."""
    reach = -1 if window is None else window - 1
    return reach, 0 if causal else reach


@cache
def _torch_has_one() -> bool:
    """Whether torch has the kernel, in the form that takes a window."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return {"window_size", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


@cache
def _flash_attention_is_there() -> bool:
    """Whether it is version 2: version 4 has a folder of this name alone, without a module in it."""
    found = find_spec("flash_attn")
    return found is not None and found.origin is not None


ATTENTION = "dynbench_packed"
"""Its name in transformers' attention interface."""
CALL = 500_000
"""What a further call costs, forward and backward, in units of one query, one key and one channel; on a CPU core."""
COPY = 60
"""What it costs to lay out a token's channel and to take it back, in the same units."""
MOST_PADDING = 2
"""Other devices than CPUs re-pad up to so many times the tokens."""


def register() -> None:
    """Make the function known to transformers; a second time changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    boundaries: Boundaries | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer.

    Args:
        module: the attention layer, which says whether it is causal.
        query: [1, heads, T, channels].
        key: [1, key heads, T, channels]; query heads are a multiple of these.
        value: as `key`.
        attention_mask: None: no mask function is registered, and a packed row has no padding.
        dropout: probability of dropping an attention weight.
        scaling: of the scores; None is 1 / sqrt(channels).
        is_causal: whether tokens see earlier ones only; None is what the module says.
        sliding_window: tokens see others closer than this only, on both sides where they are not causal; None for any.
        boundaries: where the samples are.

    Returns:
        [1, T, heads, channels], and no weights.

    Raises:
        UsageError: no boundaries came.
    """
    if boundaries is None:
        raise UsageError(
            f"{type(module).__name__}: the boundaries of the packed row did not get to this layer",
            "Call the model that use_packed_rows prepared, not its parts; and take transformers 5.23 or later.",
        )
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    attended = attend(
        query.transpose(1, 2)[0],
        key.transpose(1, 2)[0],
        value.transpose(1, 2)[0],
        boundaries,
        causal=causal,
        window=sliding_window,
        scale=scaling,
        dropout=dropout,
    )
    return attended[None], None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Boundaries,
    *,
    causal: bool,
    window: int | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of every sample to itself, [T, heads, channels]; states are [T, (key) heads, channels]."""
    if window is not None and window >= boundaries.longest:
        window = None
    if torch.is_autocast_enabled(query.device.type):
        # Rotated positions are fp32, which only torch's own attention would be cast from.
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
    kernel = variable_length_kernel(query, dropout)
    width = query.shape[1] * query.shape[2]
    arranged = boundaries.arrangement or cheaper_arrangement(boundaries, width)
    if boundaries.checked is not None:
        boundaries.checked.add(arranged if kernel is None else getattr(kernel, "__name__", ""))
        dropout = 0.0
    arrange = kernel or (_by_length if arranged == "by_length" else _repadded)
    return arrange(query, key, value, boundaries, Form(causal, window, scale, dropout))


def cheaper_arrangement(boundaries: Boundaries, width: int) -> Arrangement:
    """By length a CPU core computes the fewest scores, re-padded it is called once: whichever takes less by `CALL`.

    Other devices compute scores much faster than they are called, and re-pad up to `MOST_PADDING`.

    Args:
        boundaries: where the samples are.
        width: channels over all heads.
    """
    samples, longest = len(boundaries.lengths), boundaries.longest
    if boundaries.device.type != "cpu":
        return "repadded" if samples * longest <= MOST_PADDING * boundaries.tokens else "by_length"
    by_length = CALL * len(boundaries.runs) + width * sum(length * length for length in boundaries.lengths)
    repadded = CALL + width * samples * longest * (longest + COPY)
    return "by_length" if by_length <= repadded else "repadded"


def most_demanding(samples: int, longest: int, device: torch.device) -> tuple[int, ...]:
    """Lengths of a row for which attention needs most memory, of those with as many tokens and no longer a sample.

    Where scores are computed by length these are equal; where rows are re-padded, the most samples that still are.

    Args:
        samples: how often `longest` goes into the row's tokens.
        longest: tokens of its longest sample.
        device: where the row will be.
    """
    if samples == 1 and device.type != "cpu":
        # Shorter samples of as many tokens, in more places when they are re-padded, need more than the one.
        half = max(1, longest // 2)
        return _joined(half, longest - half, MOST_PADDING * 2 - 1)
    rest = (samples - 1) * longest
    return _joined(longest, rest, samples - 1 if device.type == "cpu" else MOST_PADDING * samples - 1)


def _joined(longest: int, rest: int, others: int) -> tuple[int, ...]:
    """A sample behind up to so many others, which share the rest of the tokens evenly; ascending."""
    others = min(others, rest)
    if not others:
        return (longest,)
    each, more = divmod(rest, others)
    return (*[each] * (others - more), *[each + 1] * more, longest)


def _by_length(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, form: Form) -> Tensor:
    """A call for each run of equal lengths, whose states are looked at where they are; nothing is padded."""
    sizes = [count * length for count, length in boundaries.runs]
    pieces_of, parts = (torch.split(each, sizes) for each in (query, key, value)), []
    for (count, length), *pieces in zip(boundaries.runs, *pieces_of, strict=True):
        band = None if form.window is None or form.window >= length else _band(length, form, boundaries.device)
        rows = [piece.view(count, length, *piece.shape[1:]) for piece in pieces]
        parts.append(_scaled_dot_product(rows, band, form))
    return torch.cat(parts)


def _repadded(query: Tensor, key: Tensor, value: Tensor, boundaries: Boundaries, form: Form) -> Tensor:
    """One call, samples padded to the longest; what pads is laid out behind a sample, so causal tokens never see it."""
    samples, longest = len(boundaries.lengths), boundaries.longest

    def laid_out(each: Tensor) -> Tensor:
        empty = each.new_zeros(samples * longest, *each.shape[1:])
        return empty.index_copy(0, boundaries.slots, each).view(samples, longest, *each.shape[1:])

    mask = None
    if not form.causal or form.window is not None:
        mask = boundaries.valid[:, None, None, :]
        if form.window is not None:
            # What pads sees itself at least: a softmax over nothing is not a number, and spreads backward.
            itself = torch.eye(longest, dtype=torch.bool, device=boundaries.device)
            mask = (mask & _band(longest, form, boundaries.device)) | itself
    return _scaled_dot_product(list(map(laid_out, (query, key, value))), mask, form).index_select(0, boundaries.slots)


def _scaled_dot_product(rows: Sequence[Tensor], mask: Tensor | None, form: Form) -> Tensor:
    """What torch gives for query, key and value of shape [n, L, (key) heads, channels], as [n * L, heads, channels]."""
    query, key, value = (each.transpose(1, 2) for each in rows)
    done = F.scaled_dot_product_attention(
        *(query, key, value),
        attn_mask=mask,
        is_causal=form.causal and mask is None,
        dropout_p=form.dropout,
        scale=form.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return done.transpose(1, 2).flatten(0, 1)


def _band(length: int, form: Form, device: torch.device) -> Tensor:
    """Which tokens of a sample are closer than the window, and not later where they are causal, bool [L, L]."""
    assert form.window is not None
    places = torch.arange(length, device=device)
    ahead = places[:, None] - places
    near = ahead.abs() < form.window
    return near & (ahead >= 0) if form.causal else near
