"""Traces: when the nodes of a cluster come, are warned, and are preempted.

Recorded by a provider, published, or generated; the simulator plays them and a
cluster of real processes replays them.

  trace        the value: events in order of time, with zones
  readers      files to traces and back; samples and counts are formats that
               give numbers of nodes only
  spot_price   what nodes cost, where a trace has prices
  summary      live nodes, preemptions, bulks, lifetimes
  scale        the same trace for another cluster: nodes, speed, zones
  parameters   what kind of trace to draw, and that as options
  generator    draws one: preemptions in bulks, nodes that come back
  fit          the parameters that imitate a given trace
  replay       what real nodes do to replay one

Read `trace`, then `generator`.
"""
