"""Faults on purpose: which nodes die, are told to leave, or join, and when.

One file of faults serves runs in one process and clusters; hosts of nodes
decide who is hit (`train.members.local_cohort`, `local_cluster.director`).

  faults        a fault, its file, and those that are due in a step; read first
  random_kills  kills at random times, each followed by a replacement
"""
