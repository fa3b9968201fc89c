"""Baselines: what others do, behind the same interface, so that all are measured alike."""
