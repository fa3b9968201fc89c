"""Training: launched under torchrun or as virtual ranks, every step measured on every rank."""
