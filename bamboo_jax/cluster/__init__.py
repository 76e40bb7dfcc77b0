"""Membership: how nodes agree on the members of a run, without a master.

Each node has an agent and a worker. The worker trains; its agent watches it and
other agents, and maintains the log of views: numbered sets of nodes, written
once, in the records of the run. Nothing here computes or imports JAX.

  views       numbered sets of nodes, and the next one; pure
  records     values that are made once, in a folder or a bucket
  mirror      the other files of a run in a bucket, and the folder of each machine
  judge       views, numbers of nodes and runs, as records
  holding     a run of one process
  agent/      the agent: one class that runs the protocols, and what it decides by
  client      the worker's side of the protocol with its agent
  messages    messages of agents and workers, as values, and how they travel
  waits       what a worker waits for, told on a signal
  notices     preemption notices of clouds
  children    processes that do not outlive their parent
  copies      forked processes that share what their parent has loaded

Read first: `views`, `judge`, then `agent/agent`.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
