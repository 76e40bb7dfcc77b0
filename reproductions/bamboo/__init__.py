"""Bamboo's simulated preemptions, by the rules of its artifact.

  artifact  models, step times, nodes lost and added hour by hour, and the outcome of a run
  loop      the event loop, with the artifacts' flaws, and how Bamboo handles losses in it
  table     an experiment: the table of BERT

Read `artifact` first, then `loop`.
"""
