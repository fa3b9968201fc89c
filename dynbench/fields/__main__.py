"""Prints the page of all fields."""

import sys

from dynbench.fields.documents import page

sys.stdout.write(page())
