"""Golden runs: recorded runs, what is computed and what is printed from them, and what of that was accepted."""
