"""Plays traces of preemptions against policies: what would training cost?

Pure Python. Decisions are those of `recovery`; this adds time and money.

  api               one call for a run; its names are those of this package
  presets           policies by name, and the job that they are compared on

  loop              plays a trace, event by event
  roster            nodes by name and by place
  decisions         asks `recovery.decide`, and remembers the answers
  books             counts steps, saves and lost work between events

  policies          a policy from settings: ladder, shapes, places, times
  times             how long it takes to boot, detect, restart, save; and so
                    how long steps, changes and losses take
  speed             a step: its time, its samples, what its nodes do; how fast
                    pipelines are, from the profile of a model
  throughput_table  how fast they are, as others have measured it
  measured          times of a real cluster
  transformer       costs of a transformer, estimated

  forecast          what a policy is expected to train
  build             all of that from `configs/sim/compare.py`

Read `loop`, then `decisions`.
"""

from bamboo_jax.sim.api import generate_trace
from bamboo_jax.sim.api import list_policies
from bamboo_jax.sim.api import make_policy
from bamboo_jax.sim.api import read_trace
from bamboo_jax.sim.api import simulate
from bamboo_jax.sim.policies import register_layout
from bamboo_jax.sim.policies import Settings
from bamboo_jax.sim.policies import Workload
from bamboo_jax.sim.presets import register
from bamboo_jax.sim.times import Durations
from bamboo_jax.sim.transformer import estimate_transformer
