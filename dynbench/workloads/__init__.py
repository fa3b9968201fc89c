"""What is trained: data, model, loss and evaluation, each workload behind the same protocol."""
