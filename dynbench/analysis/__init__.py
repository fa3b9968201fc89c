"""What the run folders say: merged rows, summaries, checks, comparisons, figures. Never imports torch."""
