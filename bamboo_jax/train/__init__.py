"""Training: one step as a transaction, the loop around it, checkpoints."""

from bamboo_jax.train.run import train_and_evaluate
