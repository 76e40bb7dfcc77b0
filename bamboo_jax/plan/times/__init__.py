"""How long a step, its parts and a death in it take: computed from a profile.

All that is predicted of time, for plans, recovery and simulations, is computed
here. Rows are made and played by `schedule`.

  predictor   the time of a step of any pipelines, with caches; the delay of a step
              in which a node dies
  step_time   the phases of a step after the passes: sums of gradients and
              refreshes by their methods, updates, the vote
  traffic     the bytes that nodes send each other; the link between regions

Read `predictor`.
"""
