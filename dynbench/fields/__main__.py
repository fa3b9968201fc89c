"""Prints the page of all fields."""

import sys

from dynbench.fields.page import page

sys.stdout.write(page())
