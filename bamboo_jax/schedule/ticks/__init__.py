"""A step as one program in lockstep: in a tick each stage runs at most a pass.

  table      rows lowered to ticks, and where every array lies
  order      which pass a stage runs in which tick; redundant forwards
  check      refuses a table that computes something else than its rows
  timeline   duration of the ticks, and what they waste

Read `table` first.
"""
