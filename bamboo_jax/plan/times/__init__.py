"""How long a step, its parts and a death in it take: computed from a profile.

All that is predicted of time, for plans, recovery and simulations, is computed
here. Rows are made and played by `schedule`.

  predictor   the time of a step of any pipelines, with caches; the bytes that nodes
              send each other; the delay of a step in which a node dies
  step_time   the durations of phases: how sums and refreshes are made, and what bytes
              cost on the link between regions

Read `predictor`.
"""
