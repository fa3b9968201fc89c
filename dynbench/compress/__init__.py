"""What travels in place of a gradient: one compressor a file, named in `dynbench/plugins/compressors.py`."""
