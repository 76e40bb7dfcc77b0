"""Plays traces of preemptions against policies to find the cost of training.

Pure Python. Decisions are those of `recovery`; this adds time and money.

  loop              plays a trace, event by event; nodes by name and by place; policies,
                    which ask `recovery.decide`, and cache the answers
  books             counts steps, saves and lost work between events

  build             a policy from a config: ladder, shapes, places, times; or the one
                    with the highest expected throughput; one call for a run
  times             durations of boots, detection, restarts and saves, and with
                    them of steps, changes and losses; measured on a cluster
  speed             how long a step is: predicted from a model's profile, by
                    `plan.predictor`, or looked up in a published table;
                    sums of gradients by ring or tree, overlapped or not

Read `loop`.
"""

from bamboo_jax.recovery.policies import register
from bamboo_jax.sim.build import (
    generate_trace,
    JOB,
    list_policies,
    make_policy,
    read_trace,
    register_layout,
    simulate,
)
