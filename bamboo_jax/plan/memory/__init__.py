"""Device memory of nodes, in a step and in the one after a death.

  upkeep   accumulators and replicas that a node keeps besides its stage
  needs    memory of a node, by purpose and by phase of the step
  model    memory of any range of layers, for the search for a partition
  deaths   roles of nodes after a death
  explain  messages on a limit that is too small

Read `needs`, then `model`.
"""
