"""Memory that nodes need, in a step and in the one after a death.

  upkeep   what a node keeps beside the stage that it trains
  needs    what a node needs, by purpose and by phase of the step
  model    charges any range of layers, as the search for a partition needs
  deaths   what nodes need with their roles after a death
  bounds   for how many microbatches a stage keeps residuals
  explain  who needs what if a limit is too small, and what could help

Read `needs`, then `model`.
"""
