"""Micro-benchmarks: cases measured on ranks, kept as a run of the registry."""
