"""All nodes that this process drives, and the phases of a step.

The engine only acts: which layers form a stage, who owns it or holds a replica,
and in which order instructions run is decided elsewhere and comes in as plain
values. Each phase of the step is one method; `train` strings them together into
a transaction.

Nodes on devices of other processes are left out: their own processes drive them
in the same way, and links and sums join them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import functools
from typing import Any

import jax
import numpy as np

from bamboo_jax.plan import batch_split
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import evaluation
from bamboo_jax.runtime.phases import jobs as jobs_lib
from bamboo_jax.runtime.phases import prepare as prepare_lib
from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.phases import totals as totals_lib
from bamboo_jax.runtime.phases import update as update_lib
from bamboo_jax.runtime.stage import programs as stage_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.stage import store as store_lib
from bamboo_jax.runtime.wire import exchange as exchange_lib
from bamboo_jax.runtime.wire import gate as gate_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib

PyTree = Any


class Engine:
  """The nodes of this process.

  Attributes:
    nodes: The nodes that this process drives, by number.
    specs: What each stage is.
    owners: The node of each stage, for each pipeline.
    shadows: For each pipeline, the node that holds a replica of a stage, for
      stages that have one.
    shares: For each pipeline, the shares of the batch that it computes.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      owners: Sequence[Sequence[int]],
      devices: Mapping[int, jax.Device],
      num_shares: int,
      keep: bool = False,
      replicas: replicas_lib.ReplicaOptions | None = None,
      link_kind: str = "auto",
      cache: stage_lib.ProgramCache | None = None,
      gate: gate_lib.Gate | None = None,
  ) -> None:
    """Makes the nodes that own stages; compiles nothing large yet.

    Args:
      specs: One entry per stage.
      owners: For each pipeline, the node of each stage.
      devices: The device of each node, spare ones included; nodes may share
        one.
      num_shares: Number of shares; a multiple of the number of pipelines.
      keep: Whether nodes keep what a failover may need.
      replicas: How replicas are held and refreshed.
      link_kind: See `link.make_link`.
      cache: Programs of an engine before this one.
      gate: Is told of transfers with other processes.

    Raises:
      ValueError: The shares cannot be given out evenly.
    """
    if num_shares % len(owners):
      raise ValueError(
          f"num_shares={num_shares} must be a multiple of the number of "
          f"pipelines, {len(owners)}."
      )
    self.specs = tuple(specs)
    self.owners = [tuple(row) for row in owners]
    self.shares = [*batch_split.deal_shares(num_shares, len(owners))]
    self.shadows: list[dict[int, int]] = [{} for _ in owners]
    self._num_shares = num_shares
    self._keep = keep
    self._cache = stage_lib.ProgramCache() if cache is None else cache
    self._replicas = replicas or replicas_lib.ReplicaOptions()
    self._make_exchange = functools.partial(
        exchange_lib.Exchange,
        self.specs,
        kind=link_kind,
        cache=self._cache,
        gate=gate,
    )
    self._set_devices(devices)
    for row in self.owners:
      for stage, node in enumerate(row):
        self.hold(node, stage)
    for job in self.preparations(self.owners, self.shadows):
      job()

  def use_devices(self, devices: Mapping[int, jax.Device]) -> None:
    """Begins anew with nodes that hold nothing; drops all that there was.

    Args:
      devices: As for `Engine`; without any, nothing of JAX is referred to.
    """
    self._cache.clear()
    self._set_devices(devices)

  def _set_devices(self, devices: Mapping[int, jax.Device]) -> None:
    self.nodes: dict[int, node_lib.Node] = {}
    self._devices = dict(devices)
    self._tied: dict[tuple[int, int], spec_lib.Accumulator] = {}
    self._totals: totals_lib.Totals = {}
    self._exchange = self._make_exchange(devices=self._devices)
    self._update = update_lib.Update(
        self.specs, links=self._exchange.links, options=self._replicas
    )

  def hold(self, node: int, stage: int) -> None:
    """Lets a node have the programs of a stage, as owner or replica."""
    device = self._devices.get(node)
    if device is None or device.process_index != jax.process_index():
      return
    if node not in self.nodes:
      self.nodes[node] = node_lib.Node(
          node,
          device,
          links=self._exchange.links,
          num_stages=len(self.specs),
          keep=self._keep,
      )
    programs = self._cache.get(self.specs[stage], device)
    self.nodes[node].programs[stage] = programs

  def set_roles(
      self, pipeline: int, *, owners: Sequence[int], shadows: Mapping[int, int]
  ) -> None:
    """Changes who owns and who shadows the stages of a pipeline.

    State that a new role needs has to be copied before, see `copy_state`; what
    no role needs any more is dropped.
    """
    former = {*self.owners[pipeline], *self.shadows[pipeline].values()}
    self.owners[pipeline] = tuple(owners)
    self.shadows[pipeline] = dict(shadows)
    self._take_roles([pipeline], former)

  def set_pipelines(
      self,
      owners: Sequence[Sequence[int]],
      shadows: Sequence[Mapping[int, int]],
      shares: Sequence[Sequence[int]],
  ) -> None:
    """Changes what pipelines there are, as `set_roles` does for one.

    Args:
      owners: For each pipeline, the node of each stage.
      shadows: For each pipeline, who holds which replica.
      shares: For each pipeline, the shares of the batch that it computes.
    """
    self.owners = [tuple(row) for row in owners]
    self.shadows = [dict(replicas) for replicas in shadows]
    self.shares = [tuple(own) for own in shares]
    self._take_roles(range(len(owners)), self.nodes)

  def _take_roles(
      self, pipelines: Iterable[int], former: Collection[int]
  ) -> None:
    roles = []
    for pipeline in pipelines:
      roles += enumerate(self.owners[pipeline])
      roles += self.shadows[pipeline].items()
    for stage, node in roles:
      self.hold(node, stage)
    for number in self.nodes.keys() & former:
      node = self.nodes[number]
      for stage in [s for s in node.state if (s, number) not in roles]:
        del node.state[stage]

  def kill(self, number: int) -> None:
    """Makes a node vanish, with all that it holds."""
    node = self.nodes.pop(number)
    received = self._update.forget(number)
    alone = all(n.device != node.device for n in self.nodes.values())
    node.destroy(delete=alone)  # Or arrays of others might be hit.
    if alone:
      sums = [t.pop(node.device, None) for t in self._totals.values()]
      store_lib.delete_arrays([sums, received])

  def drain(self, pipeline: int) -> int:
    """Drops what nodes of a pipeline have sent and not yet received."""
    return self._exchange.links.drain(self.owners[pipeline])

  def follow(self, channel: str) -> None:
    """Ends a transfer that another process has begun."""
    self._exchange.follow(channel, like=self._update.refreshed)

  def holdings(self, pipeline: int) -> dict[int, holdings_lib.Holdings]:
    """Returns what the nodes of a pipeline hold of the current step."""
    numbers = {*self.owners[pipeline], *self.shadows[pipeline].values()}
    return {
        number: self.nodes[number].store.holdings()
        for number in sorted(numbers)
        if number in self.nodes
    }

  def copy_state(self, stage: int, *, source: int, to: int) -> int:
    """Copies the state of a stage between nodes; returns the bytes moved."""
    return replicas_lib.copy_state(
        self.nodes, stage=stage, source=source, to=to
    )

  def check_replicas(self, step: int) -> None:
    """Raises `base.ReplicaMismatchError` if a replica is not its owner's."""
    for owners, shadows in zip(self.owners, self.shadows, strict=True):
      replicas_lib.check_replicas(
          self.nodes, owners=owners, shadows=shadows, step=step
      )

  def compile(self, *, evaluate: bool) -> None:
    """Compiles the programs of all nodes, in as many threads as cores.

    With them comes all that a failover after one death takes. What has been
    compiled before takes no time.

    Args:
      evaluate: Whether `evaluate` will be called.
    """
    jobs_lib.run_all(self.compilations(evaluate=evaluate))

  def compilations(self, *, evaluate: bool) -> list[Callable[[], Any]]:
    """Returns what `compile` calls, for whoever does not want to wait."""
    propose, ties = self._update.proposes, self._exchange.ties
    jobs = prepare_lib.find_programs(
        self.nodes, self.owners, ties=ties, evaluate=evaluate, propose=propose
    )
    for owners in prepare_lib.after_each_death(self.owners, self.shadows):
      jobs += self.preparations(owners, [{} for _ in owners])
    return jobs + self._exchange.meeting_jobs(self._find_later_groups())

  def preparations(
      self,
      owners: Sequence[Sequence[int]],
      shadows: Sequence[Mapping[int, int]],
  ) -> list[Callable[[], Any]]:
    """Returns calls that compile links and sums of some roles."""
    return self._exchange.preparations(
        owners,
        shadows,
        shares=self.shares_of(len(owners)),
        local=self.nodes,
        like=self._update.refreshed,
    )

  def preconnect(self) -> int:
    """Connects nodes that will need each other if any one of them dies.

    All processes call it at once, between two steps.

    Returns:
      How many connections this process was in.

    Raises:
      Exception: Somebody is gone, as in a transfer.
    """
    return self._exchange.meet(self._find_later_groups())

  def _find_later_groups(self) -> set[tuple[int, ...]]:
    after = prepare_lib.after_each_death(self.owners, self.shadows)
    find, shares_of = self._exchange.groups, self.shares_of
    return {group for o in after for group in find(o, shares_of(len(o)))}

  def shares_of(self, num_pipelines: int) -> Sequence[Sequence[int]]:
    """Returns the shares of each of so many pipelines: as now if unchanged."""
    if num_pipelines == len(self.shares):
      return self.shares
    return batch_split.deal_shares(self._num_shares, num_pipelines)

  def set_state(self, layers: Mapping[str, spec_lib.LayerState]) -> None:
    """Gives every node a copy of the state of its layers."""
    for node in self.nodes.values():
      for stage, programs in node.programs.items():
        state = spec_lib.merge_layers(
            {l.name: layers[l.name] for l in programs.spec.layers}
        )
        node.state[stage] = jax.device_put(state, node.device, may_alias=False)

  def layer_states(self, pipeline: int = 0) -> dict[str, spec_lib.LayerState]:
    """Returns the state of each layer that a local node of `pipeline` owns."""
    layers = {}
    for stage, node in enumerate(self.owners[pipeline]):
      if node in self.nodes:
        state = self.nodes[node].state[stage]
        layers |= spec_lib.split_layers(state)
    return layers

  def begin_step(
      self, step: int, feed: node_lib.FeedFn, *, num_microbatches: int
  ) -> None:
    """Prepares `step`.

    Args:
      step: Index of the step, from 0.
      feed: Returns the data of its microbatches.
      num_microbatches: Number of microbatches in all pipelines; a multiple of
        the number of shares.
    """
    if num_microbatches % self._num_shares:
      raise ValueError(
          f"num_microbatches={num_microbatches} must be a multiple of "
          f"num_shares={self._num_shares}."
      )
    self._tied.clear()
    self._totals.clear()
    self._update.begin_step(num_microbatches)
    per_share = num_microbatches // self._num_shares
    for node in self.nodes.values():
      node.begin_step(step, feed, microbatches_per_share=per_share)

  def run(
      self, number: int, instruction: instruction_lib.Instruction
  ) -> PyTree:
    """Starts an instruction on a local node; see `node.Node.run`."""
    return self.nodes[number].run(instruction)

  def compute(
      self, order: Iterable[tuple[int, instruction_lib.Instruction]]
  ) -> None:
    """Runs instructions in the given order; those of local nodes only."""
    for number, instruction in order:
      if number in self.nodes:
        self.run(number, instruction)

  def tie(self) -> None:
    """Sums the gradients of tied parameters, beside the accumulators."""
    self._tied = self._exchange.tie(self.nodes, self.owners, self.shares)

  def reduce(self) -> None:
    """Sums the shares of each stage, beside the accumulators."""
    self._totals = self._exchange.reduce(
        self.nodes, self.owners, self.shares, tied=self._tied
    )

  def refresh(self, scale: float) -> int:
    """Brings replicas up to date, for the commit; returns the bytes sent.

    Takes what gradients are multiplied by in the update.
    """
    roles = list(zip(self.owners, self.shadows, strict=True))
    return self._update.refresh(
        self.nodes, roles, self._owned_totals(), scale=scale
    )

  def norms(self) -> np.ndarray:
    """Returns the squared norm of the gradient of each layer; blocks."""
    return np.concatenate(list(self.stage_norms().values()))

  def stage_norms(self) -> dict[int, np.ndarray]:
    """Returns the same by stage, of local stages."""
    return totals_lib.stage_norms(self._totals, self.nodes, self.owners)

  def grads(self, pipeline: int = 0) -> dict[str, PyTree]:
    """Returns the summed gradients of each layer, as a pipeline has them."""
    return totals_lib.grads(self._totals, self.nodes, self.owners[pipeline])

  def loss(self) -> np.ndarray:
    """Returns the sum of the losses and their weight; blocks."""
    return totals_lib.loss(self._totals, self.nodes, self.owners)

  def wait(self) -> None:
    """Blocks until the sums are there and state is whole, or raises why not."""
    jax.block_until_ready([list(t.values()) for t in self._totals.values()])
    self._update.wait()
    jax.block_until_ready([node.state for node in self.nodes.values()])

  def apply(self, scale: float) -> None:
    """Updates all stages and replicas, with gradients multiplied by `scale`."""
    self._update.apply(
        self.nodes, self.shadows, self._owned_totals(), scale=scale
    )

  def evaluate(
      self,
      microbatches: Iterable[Mapping[str, np.ndarray]],
      check: Callable[[], None] = lambda: None,
  ) -> dict[int, np.ndarray]:
    """Returns losses without dropout; see `evaluation.evaluate`."""
    return evaluation.evaluate(
        self.nodes, self.owners, self._exchange.links, microbatches, check=check
    )

  def _owned_totals(self) -> dict[tuple[int, int], spec_lib.Accumulator]:
    return totals_lib.owned(self._totals, self.nodes, self.owners)
