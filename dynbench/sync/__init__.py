"""How the ranks' gradients meet: one strategy a file, named in `dynbench/plugins/strategies.py`."""
