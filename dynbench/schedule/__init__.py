"""Who computes which samples: cost models, solvers, policies, bounds and the planner; numpy only."""
