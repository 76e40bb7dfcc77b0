"""Fault injection: which nodes die, get a notice, or join, and when.

One file of faults serves runs in one process and clusters; the process that
hosts the nodes injects them (`training.members.local_cohort`,
`local_cluster.director`).

  faults        a fault, its file, and the faults due in a step; read first
  slow          by how much a node is slow
  random_kills  kills at random times, each followed by a replacement
"""
