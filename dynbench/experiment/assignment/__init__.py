"""The written questions of a systems assignment: measured by benchmarks and comparisons, answered from their rows."""
