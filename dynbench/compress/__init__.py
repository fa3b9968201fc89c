"""What travels in place of a gradient: one compressor a file, named in `registry.py`."""
