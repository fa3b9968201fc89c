"""Samples to rows of at most so many tokens, by the rules of others: positions per row, in the order of packing.

No sample may be longer than a row.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter

Rows = list[list[int]]
_Items = list[tuple[int, int]]
"""Pairs (length, what tells equal ones apart), ascending."""


def next_fit(lengths: Sequence[int], row_tokens: int) -> Rows:
    """In the order given, a new row where the next sample does not fit: Megatron's `DpBalancedScheduler`."""
    rows: Rows = []
    room = 0
    for position, length in enumerate(lengths):
        if length > room or not rows:
            rows.append([])
            room = row_tokens
        rows[-1].append(position)
        room -= length
    return rows


def first_fit(lengths: Sequence[int], row_tokens: int, most: int) -> Rows:
    """In the order given, each to the first row with room and fewer than `most` samples: Axolotl's multipack."""
    rows: Rows = []
    # A tree of the largest room below each node; leaf i, at `leaves` + i, is row i's.
    leaves = 1 << (len(lengths) - 1).bit_length()
    rooms = [row_tokens] * (2 * leaves)
    for position, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node = 2 * node if rooms[2 * node] >= length else 2 * node + 1
        if node - leaves == len(rows):
            rows.append([])
        row = rows[node - leaves]
        row.append(position)
        rooms[node] = rooms[node] - length if len(row) < most else 0
        while node > 1:
            node //= 2
            rooms[node] = max(rooms[2 * node], rooms[2 * node + 1])
    return rows


def best_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Rows:
    """Longest first, each to the row that it fills best, of equal ones that which has waited longest: TRL's `bfd`."""
    rows: Rows = []
    rooms: list[int] = []
    waiting: defaultdict[int, deque[list[int]]] = defaultdict(deque)
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(rooms, lengths[position])
        if at < len(rooms):
            room = rooms[at]
            row = waiting[room].popleft()
            if not waiting[room]:
                del rooms[at]
        else:
            room, row = row_tokens, []
            rows.append(row)
        row.append(position)
        room -= lengths[position]
        if room and not waiting[room]:
            insort(rooms, room)
        waiting[room].append(row)
    return rows


def modified_first_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Rows:
    """Modified first fit decreasing (Johnson and Garey, J. Complexity 1, 1985) as NeMo-RL has it.

    Its last phase gives each sample that is left to the emptiest row, not to the first that holds it.
    """
    ascending = sorted((length, position) for position, length in enumerate(lengths))
    # Of equal lengths the first one is taken, but among the small the last.
    medium = sorted((n, -at) for n, at in ascending if 3 * n > row_tokens >= 2 * n)
    small = [(n, at) for n, at in ascending if 6 * n > row_tokens >= 3 * n]
    large = sorted((-n, at) for n, at in ascending if 2 * n > row_tokens)
    rows, rooms = [[at] for _, at in large], [row_tokens + n for n, _ in large]
    for row in range(len(rows)):
        if found := _take_largest(medium, rooms[row]):
            rows[row].append(-found[1])
            rooms[row] -= found[0]
    for row in reversed(range(len(rows))):
        if len(rows[row]) == 1 and len(small) > 1 and small[0][0] + small[1][0] <= rooms[row]:
            first = small.pop(0)
            second = _take_largest(small, rooms[row] - first[0])
            assert second is not None
            rows[row] += [first[1], second[1]]
            rooms[row] -= first[0] + second[0]
    rest = sorted([*medium, *((n, -at) for n, at in small), *((n, -at) for n, at in ascending if 6 * n <= row_tokens)])
    for row in range(len(rows)):
        while found := _take_largest(rest, rooms[row]):
            rows[row].append(-found[1])
            rooms[row] -= found[0]
    return rows + _emptiest_first(reversed(rest), row_tokens)


def _take_largest(items: _Items, room: int) -> tuple[int, int] | None:
    at = bisect(items, (room, inf))
    return items.pop(at - 1) if at else None


def _emptiest_first(falling: Iterable[tuple[int, int]], row_tokens: int) -> Rows:
    piles: list[tuple[int, list[int]]] = []
    for length, position in falling:
        total, pile = piles.pop(0) if piles and piles[0][0] + length <= row_tokens else (0, [])
        pile.append(-position)
        insort(piles, (total + length, pile), key=itemgetter(0))
    return [pile for _, pile in piles]


def whole_rounds(rows: Rows, sources: Iterable[int], ranks: int) -> Rows:
    """The rows and more, until all ranks run equally many.

    Each further row is the last sample of a source.

    Args:
        rows: of at least as many samples as rows are needed.
        sources: rows in the order in which they give samples, each until it has one left.
        ranks: G.
    """
    order = iter(sources)
    while len(rows) % ranks:
        source = next(source for source in order if len(rows[source]) > 1)
        while len(rows) % ranks and len(rows[source]) > 1:
            rows.append([rows[source].pop()])
    return rows
