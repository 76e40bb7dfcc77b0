"""Variants in the process of one stage: executors and modes.

A variant is built from a plan and then runs steps.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.benchmarks import joined, predict
from bamboo_jax.checkpoint import digest
from bamboo_jax.plan import planner
from bamboo_jax.runtime import (
    engine as engine_lib,
    executor as executor_lib,
    node as node_lib,
)
from bamboo_jax.runtime.phases import compile_ahead, reduce, update
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train.setup import build, executors

Microbatches = Sequence[Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Site:
  """Facts that all variants share."""

  config: config_lib.Config
  task: build.Task
  plan: planner.Plan
  specs: Sequence[spec_lib.StageSpec]
  stages: joined.Joined
  cache: programs_lib.ProgramCache

  @property
  def scale(self) -> float:
    """Factor from a sum over the batch to a mean per token."""
    length = self.config.model.options["sequence_length"]
    return 1.0 / (self.task.batches.batch_size * length)


class Rows:
  """A mode of redundancy under the executor `rows`."""

  def __init__(self, site: Site, mode: str) -> None:
    self.site = site
    self.plan = predict.plan_mode(site.plan, site.config.redundancy, mode)
    roles = self.plan.roles
    self.engine = engine_lib.Engine(
        site.specs,
        owners=[roles.owners],
        devices=site.stages.devices,
        num_shares=1,
        keep=bool(roles.shadows),
        replicas=site.config.redundancy,
        cache=site.cache,
        exchange=site.stages.transport,
    )
    self.engine.set_pipelines([roles.owners], [roles.shadows], [(0,)])
    compile_ahead.compile_all(self.engine, evaluate=False)
    self.engine.set_state(spec_lib.init_layers(site.task.whole))
    self._filling, self._recorder = self.plan.filling, recorder.Recorder()
    self._filler = executor_lib.Filler()
    self._lazy = timeline_lib.linearize([self.plan.whole.bare])

  @property
  def node(self) -> node_lib.Node:
    """The node of this process."""
    (node,) = self.engine.nodes.values()
    return node

  def sizes(self) -> dict[str, int]:
    """Returns bytes that it holds on this node, by name."""
    stages = self.plan.roles.replicas_of(self.site.stages.rank)
    states = [self.node.state[stage] for stage in stages]
    replica_bytes = sum(a.nbytes for a in jax.tree.leaves(states))
    rank, plan = self.site.stages.rank, self.plan
    peak_bytes = timeline_lib.peak_bytes(
        plan.whole.timeline.instructions[rank],
        owned=plan.roles.stages_of(rank),
        costs=plan.rows.costs,
    )
    return {
        "replica_bytes": replica_bytes,
        "device_bytes": replica_bytes + peak_bytes,
        "host_bytes": 0,
    }

  def run(self, step: int, microbatches: Microbatches) -> dict[str, Any]:
    """Runs a step and commits it; returns times and bytes by name."""
    cpu_secs, start = time.process_time(), time.perf_counter()
    self._begin(step, microbatches)
    ran = self._compute()
    reduce.reduce(self.engine)
    computed = self._wait()
    held = self.node.store.arrays()
    on_host = [a for a in held if a.sharding.memory_kind == "pinned_host"]
    found = {"host_bytes": sum(a.nbytes for a in on_host)}
    if self.site.stages.rank == len(self.site.specs) - 1:
      found["loss"] = float(reduce.loss(self.engine)[0]) * self.site.scale
    refresh_bytes = update.refresh(self.engine, self.site.scale)
    refreshed = self._wait()
    self.site.stages.wait()
    voted = time.perf_counter()
    update.apply(self.engine, self.site.scale)
    end = self._wait()
    return {
        "compute_ms": 1e3 * (computed - start),
        "refresh_ms": 1e3 * (refreshed - computed),
        "vote_ms": 1e3 * (voted - refreshed),
        "apply_ms": 1e3 * (end - voted),
        "cpu_ms": 1e3 * (time.process_time() - cpu_secs),
        "refresh_bytes": refresh_bytes,
        "ran": ran,
        **found,
    }

  def learn(self, stretch: float) -> None:
    """Learns how much longer than planned the rows of a step took."""
    self._filler.learn(stretch)

  def digests(self) -> dict[int, str]:
    """Returns the hash of the state of each stage that this node holds."""
    return {
        stage: digest.state_sha256(
            digest.digest_layers(spec_lib.split_layers(state)),
            [layer.name for layer in self.engine.specs[stage].layers],
            samples_seen=0,
        )
        for stage, state in sorted(self.node.state.items())
    }

  def _begin(self, step: int, microbatches: Microbatches) -> None:
    self.site.stages.begin()
    self._step = step
    self._feed = lambda m, keys: {key: microbatches[m][key] for key in keys}
    self.engine.begin_step(step, self._feed, num_microbatches=len(microbatches))

  def _compute(self) -> base.PyTree:
    """Runs the rows and fills their waits; returns `filling.Ran`, as JSON."""
    filler = self._filler
    filler.plan(self._filling)
    filler.begin(self.engine.nodes)
    for number, instruction in self._lazy:
      if node := self.engine.nodes.get(number):
        for run in filler.run(node, instruction):
          self._recorder.add(number, *run)
    for run in filler.finish():
      self._recorder.add(*run)
    ran = filler.ran(self._recorder.finish())
    return json_lib.to_plain(ran.get(self.site.stages.rank))

  def _wait(self) -> float:
    """Blocks until everything is done, replicas included; returns the ms."""
    self.engine.wait()
    jax.block_until_ready(self.node.store.arrays())
    return time.perf_counter()


class Program(Rows):
  """A mode of redundancy under the executor `spmd`."""

  def __init__(self, site: Site, mode: str) -> None:
    super().__init__(site, mode)
    config = site.config.changed({"redundancy.mode": mode})
    program = executors.plan_program(config, site.task, site.plan)
    self.programs = executors.make_programs(
        *(config, site.task, program), engine=self.engine, processes=site.stages.processes
    )
    compile_ahead.compile_all(self.engine, evaluate=False, more=self.programs.jobs)

  def sizes(self) -> dict[str, int]:
    """Returns bytes by name."""
    found = self.programs.num_bytes()
    state = sum(a.nbytes for a in jax.tree.leaves(self.node.state))
    device_bytes = state + found["device"]
    return {"device_bytes": device_bytes, "host_bytes": found["host"]}

  def difference(self, rows: Rows) -> float:
    """Returns the relative difference of this stage's parameters from rows."""
    got, want = (
        np.concatenate([np.ravel(a) for a in jax.tree.leaves(state.params)])
        for state in (v.node.state[v.site.stages.rank] for v in (self, rows))
    )
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))

  def _compute(self) -> None:
    self.programs.begin(self._step, self._feed)
    self.programs.plan((), line=0)
    self.programs.run_in_children(lambda nodes, segment: None, lambda: None)
    self.programs.put_sums()


# Builds a variant, by the first word of names such as "rows/eager".
KINDS = {"rows": Rows, "spmd": Program}
