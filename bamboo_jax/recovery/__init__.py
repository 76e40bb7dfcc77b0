"""Decides how training continues when nodes are lost or join; pure.

One process, a cluster and a simulation call the same `decide` with the same
ladder and the same planner.

  ladder      the rungs, their settings, and the input of a decision
  decide      which rung is taken, and the pipelines that follow
  repair      spares take places, replicas are made

  planner     makes pipelines and predicts their cost, in three parts:
  shapes      1. how many, of how many stages: depth, templates, grid, even
  placement   2. which node gets which stage; searches for the arrangement
                 that survives most failures, `survival` counts them
  (planner)   3. times: how long steps and pauses take
  oobleck/    Oobleck's templates, covers and rules
  triggers    Bamboo's: when new pipelines are desirable
  moves       which state is copied when pipelines change, or layouts

  layout      the nodes of each stage, spares, and in a run their shares and rows
  assignment  completes decisions of a run: shares, detours and copies
  slowness    which node is slow, and makes the others wait
  agreement   the conclusion of a view's members from their statuses
  durations   how long recoveries of a run took, from its log

Read `ladder`, then `decide`.
"""
