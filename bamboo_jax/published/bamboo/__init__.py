"""Bamboo's simulated preemptions, by the rules of its artifact.

  artifact             models, step times, and what a run gives
  hourly_preemptions   draws who is lost and who comes, hour by hour
  loop                 the event loop, with the artifacts' flaws as an option
  rules                what a loss and the end of a step mean to Bamboo

Read `artifact` first, then `loop`.
"""
