"""Faults on purpose: which nodes die, are told to leave, or join, and when.

One file says it, for a run in one process and for a cluster alike; who is hit
is decided by whoever hosts the nodes (`train.local_cohort` in one process,
`local_cluster.director` for processes).

  faults        a fault, its file, and those that are due in a step; read first
  random_kills  kills at random times, each followed by a replacement
"""
