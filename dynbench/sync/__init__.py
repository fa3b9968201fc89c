"""How the ranks' gradients meet: one strategy a file, named in `registry.py`."""
