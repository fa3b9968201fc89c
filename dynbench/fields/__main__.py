"""Writes the page of all fields to stdout: `python -m dynbench.fields > results/FIELDS.md`."""

import sys

from dynbench.fields.page import page

sys.stdout.write(page())
