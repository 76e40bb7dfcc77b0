"""Decides how training continues when nodes are lost or join; pure.

One process, a cluster and a simulation call the same `decide` with the same
ladder and the same planner.

  policies    choices of rungs and pipelines, by the names of systems
  decide      the rungs; which one is taken, and the pipelines that follow; spares
              take places, replicas are made

  planner     makes pipelines and predicts their cost, in three parts:
  shapes      1. how many, of how many stages: the best partition for each number of
              nodes, covers, Bamboo's triggers, and Oobleck's rules after a loss
  placement   2. which node gets which stage: neighbours apart, copies spread
  (planner)   3. times: how long steps and pauses take
  moves       which state is copied when pipelines change, or layouts

  layout      the nodes of each stage, spares, and in a run their shares and rows
  assignment  completes decisions of a run: shares, detours and copies
  survival    the failures that pipelines survive
  slowness    which node is slow, and makes the others wait
  agreement   the conclusion of a view's members from their statuses
  durations   how long recoveries of a run took, from its log

Read `decide` first.
"""
