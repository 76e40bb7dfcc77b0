"""Ablations, runs that take turns, and scripts that measure one thing each.

  ablation     trials of `bamboo ablate`, their rows, tables, paired differences and
               the figure
  interleave   runs that take turns, so that their times are paired
  story        trainings at the same time, shown together, and what deaths have cost:
               `bamboo quickstart`

Run by `python -m bamboo_jax.benchmarks.NAME`:

  torch_pipeline   a step of the same model in PyTorch, as a rival of runs
  memory           predicted against measured memory of nodes
  shape            throughput with f of N nodes gone
  sum_times        a sum over processes: the transport against Gloo
"""
