"""Loggers that come with the package; `metrics.logger` has the protocol.

background  runs a logger in a thread, and drops it when it fails
csv_file    metrics.csv
tensorboard scalars for TensorBoard
wandb_run   one run of Weights & Biases, for all members
"""
