"""A step, or the rest of one, as one program in lockstep.

In a tick each node runs at most one forward and one backward pass, and beside
them a redundant forward pass; then all exchange results.

  table      what every node does in every tick, and where arrays lie
  lowering   rows lowered to such a table
  order      which pass a node runs in which tick; redundant forwards
  slots      where arrays lie: slots of buffers, taken and freed
  check      refuses a table that computes something else than its rows
  redone     what a death makes the others do again
  timeline   duration of the ticks

Read `table` first.
"""
