"""What differs from the goldens, and what is accepted in their place.

PYTHONPATH=tests python -m golden show [values|words] [NAME ...]
PYTHONPATH=tests python -m golden accept values|words [NAME ...]

`make golden`, `make accept-values` and `make accept-words` call it, with ONLY="NAME ..." for some. What is accepted is
printed; the commit says which goldens changed, and why.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, repeat
from multiprocessing import get_context

from .accepted import KINDS, settle, silent
from .subjects import SUBJECTS


def main() -> int:
    """Show or accept; 1 where something differs and is only shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["show", "accept"])
    parser.add_argument("names", nargs="*", metavar="[values|words] NAME")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind in given.names] or list(KINDS)
    names = [name for name in given.names if name not in KINDS] or list(SUBJECTS)
    if given.what == "accept" and len(kinds) > 1:
        parser.error("say which: accept values, or accept words")
    if unknown := set(names) - set(SUBJECTS):
        parser.error(f"no golden: {', '.join(sorted(unknown))}; there are: {', '.join(SUBJECTS)}")
    differs = 0
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=silent) as pool:
        found = pool.map(settle, names, repeat(kinds), repeat(given.what == "accept"))
        for line in chain.from_iterable(found):
            print(line)
            differs += line.startswith("== ")
    done = "accepted" if given.what == "accept" else "different"
    print(f"{done}: {differs} of {len(names) * len(kinds)}", file=sys.stderr)
    return 1 if differs and given.what == "show" else 0


if __name__ == "__main__":
    sys.exit(main())
