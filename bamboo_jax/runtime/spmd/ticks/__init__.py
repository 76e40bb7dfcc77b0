"""A step, or the rest of one, as one program in lockstep.

In a tick each node runs at most one forward and one backward pass, and beside
them a redundant forward pass; then all exchange results.

  tick_table  passes of each node by tick, and the slots of arrays
  lowering    rows lowered to such a table
  order       the tick of each pass; redundant forward passes
  slots       allocation of buffer slots to arrays
  check       rejects a table that does not compute its rows

Read `tick_table` first.
"""
