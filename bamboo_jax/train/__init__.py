"""Training: one step as a transaction, the loop around it, checkpoints."""
