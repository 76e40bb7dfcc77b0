"""Decides how training goes on when nodes are lost or come; pure.

One process, a cluster and a simulation ask the same `decide` with the same
ladder and the same planner.

  ladder      the rungs, their settings, and the facts that are decided from
  decide      which rung is taken, and who does what from then on
  repair      spares take places, replicas are made

  planner     makes pipelines and says what they cost, from three things:
  shapes      1. how many, of how many stages: depth, templates, grid, even
  places      2. which node gets which stage; `placement` searches for what
                 survives most, `survival` counts that
  (planner)   3. times: how long steps and pauses take
  oobleck/    Oobleck's: templates, which of them cover all nodes, its rules
  triggers    Bamboo's: when new pipelines are desirable
  moves       which state is copied when pipelines change

  layout      of a run: who trains what
  assignment  layouts to states, and decisions to changes
  agreement   what the members of a view conclude from what all have said

Read `ladder`, then `decide`.
"""
