"""dynbench: how much of data-parallel training is spent waiting for the slowest rank, and what comes back."""

__version__ = "0.1.0"
