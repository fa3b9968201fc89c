"""The probe: how large a micro-batch fits on every rank, and what a training step costs there."""
