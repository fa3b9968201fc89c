"""The Triton kernels of FlashAttention-2; importing this needs Triton. `flash_triton_launch.py` launches them.

Plain pointers: Triton 3.9 has no block pointers. Powers are of two. Tiles that no query of theirs may see are left
out; tiles that all queries see whole are not masked. In a packed row a query's keys are those from `starts` to `ends`
of its sample. `LENGTH` is read by the tuner alone.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from dynbench.kernels.flash_torch import MASKED

LOG2E = tl.constexpr(math.log2(math.e))
HIDDEN = tl.constexpr(MASKED)


@triton.jit
def _product(a, b, UPCAST: tl.constexpr):
    """Summed in float32; `UPCAST` because the interpreter's bfloat16 products are wrong."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _load(base, tokens, channels, n, D: tl.constexpr):
    """States of these tokens, [tokens, channels]; zero beyond the last of either."""
    inside = (tokens[:, None] < n) & (channels[None, :] < D)
    return tl.load(base + tokens[:, None] * D + channels[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, values, tokens, channels, n, D: tl.constexpr):
    inside = (tokens[:, None] < n) & (channels[None, :] < D)
    tl.store(base + tokens[:, None] * D + channels[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _span(starts, ends, tokens, n, PACKED: tl.constexpr):
    """Where the samples of these tokens begin and end; of every token, and over all of them."""
    if PACKED:
        begin = tl.load(starts + tokens, mask=tokens < n, other=n)
        end = tl.load(ends + tokens, mask=tokens < n, other=0)
        return begin, end, tl.min(begin, 0), tl.max(end, 0)
    return tokens * 0, tokens * 0 + n, 0, n


@triton.jit
def _seen(queries, keys, n_k, begin, end, CAUSAL: tl.constexpr, PACKED: tl.constexpr):
    """Which keys these queries see, [queries, keys]; `begin` and `end` are of the queries' samples."""
    seen = (keys < n_k)[None, :] & (queries >= 0)[:, None]
    if CAUSAL:
        seen &= keys[None, :] <= queries[:, None]
    if PACKED:
        seen &= (keys[None, :] >= begin[:, None]) & (keys[None, :] < end[:, None])
    return seen


@triton.jit
def _sum_tiles(
    total, largest, weight, q, k_base, v_base, queries, channels, first, last, n_k, begin, end, scale,
    D: tl.constexpr, KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """The loop over tiles of keys, from `first` to `last`: what is summed so far is rescaled to the largest score."""
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _load(k_base, keys, channels, n_k, D)
        v = _load(v_base, keys, channels, n_k, D)
        scores = _product(q, tl.trans(k), UPCAST) * scale
        if MASK:
            scores = tl.where(_seen(queries, keys, n_k, begin, end, CAUSAL, PACKED), scores, HIDDEN)
        ahead = tl.maximum(largest, tl.max(scores, 1))
        rescale = tl.exp2(largest - ahead)
        weights = tl.exp2(scores - ahead[:, None])
        weight = weight * rescale + tl.sum(weights, 1)
        total = total * rescale[:, None] + _product(weights.to(v.dtype), v, UPCAST)
        largest = ahead
    return total, largest, weight


@triton.jit
def forward(
    q_all, k_all, v_all, o_all, lse_all, starts, ends, n_q, n_k, scale, LENGTH,
    D: tl.constexpr, CHANNELS: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, UPCAST: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Results and logsumexp of a tile of queries."""
    row = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(0) * QUERIES
    queries = first_query + tl.arange(0, QUERIES)
    channels = tl.arange(0, CHANNELS)
    q = _load(q_all + row * n_q * D, queries, channels, n_q, D)
    k_base = k_all + row * n_k * D
    v_base = v_all + row * n_k * D
    begin, end, first, last = _span(starts, ends, queries, n_k, PACKED)
    whole = last // KEYS * KEYS
    if CAUSAL:
        last = tl.minimum(last, first_query + QUERIES)
        whole = tl.minimum(whole, first_query // KEYS * KEYS)
    if PACKED:
        whole = first
    total = tl.zeros([QUERIES, CHANNELS], tl.float32)
    largest = tl.full([QUERIES], HIDDEN, tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    scale = scale * LOG2E
    total, largest, weight = _sum_tiles(
        total, largest, weight, q, k_base, v_base, queries, channels, first, whole, n_k, begin, end, scale,
        D, KEYS, False, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    total, largest, weight = _sum_tiles(
        total, largest, weight, q, k_base, v_base, queries, channels, whole, last, n_k, begin, end, scale,
        D, KEYS, True, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    _store(o_all + row * n_q * D, total / weight[:, None], queries, channels, n_q, D)
    tl.store(lse_all + row * n_q + queries, (largest + tl.log2(weight)) / LOG2E, mask=queries < n_q)


@triton.jit
def _scores_again(
    q, k, v, dout, lse, delta, queries, keys, n_k, begin, end, scale,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Weights of a tile, and gradients of its scores, [queries, keys]."""
    scores = _product(q, tl.trans(k), UPCAST) * (scale * LOG2E)
    if MASK:
        scores = tl.where(_seen(queries, keys, n_k, begin, end, CAUSAL, PACKED), scores, HIDDEN)
    weights = tl.exp2(scores - lse[:, None] * LOG2E)
    return weights, weights * (_product(dout, tl.trans(v), UPCAST) - delta[:, None])


@triton.jit
def _sum_of_query(
    dq, q, dout, lse, delta, k_base, v_base, queries, channels, first, last, n_k, begin, end, scale,
    D: tl.constexpr, KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _load(k_base, keys, channels, n_k, D)
        v = _load(v_base, keys, channels, n_k, D)
        _, slopes = _scores_again(
            q, k, v, dout, lse, delta, queries, keys, n_k, begin, end, scale, MASK, CAUSAL, PACKED, UPCAST
        )
        dq += _product(slopes.to(k.dtype), k, UPCAST)
    return dq


@triton.jit
def backward_queries(
    q_all, k_all, v_all, dout_all, lse_all, delta_all, dq_all, starts, ends, n_q, n_k, scale, LENGTH,
    D: tl.constexpr, CHANNELS: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, UPCAST: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries: one loop over keys."""
    row = tl.program_id(1).to(tl.int64)
    first_query = tl.program_id(0) * QUERIES
    queries = first_query + tl.arange(0, QUERIES)
    channels = tl.arange(0, CHANNELS)
    q = _load(q_all + row * n_q * D, queries, channels, n_q, D)
    dout = _load(dout_all + row * n_q * D, queries, channels, n_q, D)
    lse = tl.load(lse_all + row * n_q + queries, mask=queries < n_q, other=0.0)
    delta = tl.load(delta_all + row * n_q + queries, mask=queries < n_q, other=0.0)
    begin, end, first, last = _span(starts, ends, queries, n_k, PACKED)
    whole = last // KEYS * KEYS
    if CAUSAL:
        last = tl.minimum(last, first_query + QUERIES)
        whole = tl.minimum(whole, first_query // KEYS * KEYS)
    if PACKED:
        whole = first
    k_base = k_all + row * n_k * D
    v_base = v_all + row * n_k * D
    dq = tl.zeros([QUERIES, CHANNELS], tl.float32)
    dq = _sum_of_query(
        dq, q, dout, lse, delta, k_base, v_base, queries, channels, first, whole, n_k, begin, end, scale,
        D, KEYS, False, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    dq = _sum_of_query(
        dq, q, dout, lse, delta, k_base, v_base, queries, channels, whole, last, n_k, begin, end, scale,
        D, KEYS, True, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    _store(dq_all + row * n_q * D, dq * scale, queries, channels, n_q, D)


@triton.jit
def _sum_of_keys(
    dk, dv, k, v, q_base, dout_base, lse_base, delta_base, starts, ends, keys, channels, first, last, n_q, n_k, scale,
    D: tl.constexpr, QUERIES: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    for start in range(first, last, QUERIES):
        queries = start + tl.arange(0, QUERIES)
        q = _load(q_base, queries, channels, n_q, D)
        dout = _load(dout_base, queries, channels, n_q, D)
        lse = tl.load(lse_base + queries, mask=queries < n_q, other=0.0)
        delta = tl.load(delta_base + queries, mask=queries < n_q, other=0.0)
        begin, end, _, _ = _span(starts, ends, queries, n_k, PACKED)
        weights, slopes = _scores_again(
            q, k, v, dout, lse, delta, queries, keys, n_k, begin, end, scale, MASK, CAUSAL, PACKED, UPCAST
        )
        dv += _product(tl.trans(weights).to(dout.dtype), dout, UPCAST)
        dk += _product(tl.trans(slopes).to(q.dtype), q, UPCAST)
    return dk, dv


@triton.jit
def backward_keys(
    q_all, k_all, v_all, dout_all, lse_all, delta_all, dk_all, dv_all, starts, ends, n_q, n_k, scale, LENGTH,
    D: tl.constexpr, CHANNELS: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, UPCAST: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values: one loop over queries."""
    row = tl.program_id(1).to(tl.int64)
    first_key = tl.program_id(0) * KEYS
    keys = first_key + tl.arange(0, KEYS)
    channels = tl.arange(0, CHANNELS)
    k = _load(k_all + row * n_k * D, keys, channels, n_k, D)
    v = _load(v_all + row * n_k * D, keys, channels, n_k, D)
    _, _, first, last = _span(starts, ends, keys, n_q, PACKED)
    whole = first
    if CAUSAL:
        first = tl.maximum(first, first_key)
        # Queries from here on see every key of the tile.
        whole = tl.minimum(first + tl.cdiv(KEYS, QUERIES) * QUERIES, last)
    if PACKED:
        whole = last
    q_base = q_all + row * n_q * D
    dout_base = dout_all + row * n_q * D
    lse_base = lse_all + row * n_q
    delta_base = delta_all + row * n_q
    dk = tl.zeros([KEYS, CHANNELS], tl.float32)
    dv = tl.zeros([KEYS, CHANNELS], tl.float32)
    dk, dv = _sum_of_keys(
        dk, dv, k, v, q_base, dout_base, lse_base, delta_base, starts, ends, keys, channels, first, whole, n_q, n_k,
        scale, D, QUERIES, True, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    dk, dv = _sum_of_keys(
        dk, dv, k, v, q_base, dout_base, lse_base, delta_base, starts, ends, keys, channels, whole, last, n_q, n_k,
        scale, D, QUERIES, False, CAUSAL, PACKED, UPCAST,
    )  # fmt: skip
    _store(dk_all + row * n_k * D, dk * scale, keys, channels, n_k, D)
    _store(dv_all + row * n_k * D, dv, keys, channels, n_k, D)
