"""Prints the page of all fields."""

import sys

from dynbench.fields.tables import page

sys.stdout.write(page())
