"""Micro-benchmarks: cases measured on ranks, stored as a run of the registry."""
