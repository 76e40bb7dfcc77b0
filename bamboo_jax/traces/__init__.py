"""Traces: when the nodes of a cluster join, get notice, and are preempted.

Recorded by a provider, published, or generated; the simulator plays them and a
cluster of real processes replays them.

  trace        the value: events in order of time, with zones; its figures: live nodes,
               preemptions, bulks, lifetimes, the mean price
  readers      files to traces and back
  scale        the same trace for another cluster: nodes, speed, zones; to replay
               it on real nodes
  generator    draws a trace: preemptions in bulks, nodes that return; or from
               blocks of a recorded one

Read `trace`, then `generator`.
"""
