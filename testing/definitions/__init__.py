"""Task definitions that only tests know: proof that a new task type touches nothing else."""
