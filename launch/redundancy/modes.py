"""Engines of several modes that take turns in the process of one stage.

They share compiled programs and have a state each, which must stay the same to
the bit. A death is simulated: the process of the victim stops where it dies,
and the survivor, on its own core, does what it would do after it has been told
of the death. Nothing is committed, so that the next step finds all as it was.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import json
import pathlib
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.plan import profile_json
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import link as link_lib
from bamboo_jax.runtime import reduce as reduce_lib
from bamboo_jax.runtime import replicas as replicas_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import stage as stage_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import build
from bamboo_jax.train import digest
from launch.redundancy import deaths
from launch.redundancy import predict

Order = Sequence[tuple[int, instruction_lib.Instruction]]


@dataclasses.dataclass(frozen=True)
class _Mode:
  plan: predict.ModePlan
  engine: engine_lib.Engine
  order: Order


class Modes:
  """The commands of the benchmark; each returns what is answered."""

  def __init__(
      self,
      config: Any,
      task: build.Task,
      *,
      devices: Mapping[int, jax.Device],
      rank: int,
  ) -> None:
    self._config = config
    self._task = task
    self._devices = devices
    self._rank = rank
    self._options = replicas_lib.ReplicaOptions(
        refresh=config.redundancy.refresh, slots=config.redundancy.slots
    )
    self._modes: dict[str, _Mode] = {}
    self._step = 0
    self._batch: list[dict[str, np.ndarray]] = []
    self._votes = reduce_lib.ShareSum(
        list(devices.values()), like=jax.ShapeDtypeStruct((1,), np.float32)
    )
    self._vote = jax.device_put(np.ones(1, np.float32), devices[rank])

  @property
  def commands(self) -> dict[str, Callable[..., Any]]:
    """The commands by name."""
    return {
        "refresh_link": self.refresh_link,
        "build_modes": self.build_modes,
        "feed": self.feed,
        "commit": self.commit,
        "compute": self.compute,
        "die": self.die,
        "digests": self.digests,
    }

  def refresh_link(self, bounds: str) -> dict[str, Any]:
    """Measures a refresh of all replicas, with nothing else to do.

    Args:
      bounds: Of the partition, such as 0,10,18.
    """
    specs = self._specs([int(b) for b in bounds.split(",")])
    by_state = self._options.refresh == "state"
    shadows = failover.Roles.initial(range(len(specs))).shadows
    ends = []
    for stage, shadow in shadows.items():
      spec = specs[stage]
      like = spec.state if by_state else spec.accumulator
      link = link_lib.make_link(
          self._devices[stage], self._devices[shadow], like=like, kind="auto"
      )
      value = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like)
      value = jax.device_put(value, self._devices[self._rank])
      ends.append((stage, shadow, link, value))
    times = []
    for _ in range(20):
      self._agree()
      start = time.perf_counter()
      for stage, shadow, link, value in ends:
        if stage == self._rank:
          link.send(value)
        if shadow == self._rank:
          link.receive()
      times.append(1e3 * (time.perf_counter() - start))
    return {"refresh_ms": statistics.median(times[5:])}

  def build_modes(self, path: str, *names: str) -> dict[str, Any]:
    """Plans all modes from the profile at `path` and compiles them."""
    options = self._config.redundancy
    profile = profile_json.from_json(pathlib.Path(path).read_text())
    plan = build.make_plan(self._config, profile)
    specs = self._specs(plan.partition.bounds)
    layers = {}
    for spec in specs:
      layers |= spec_lib.init_layers(spec)
    cache = stage_lib.ProgramCache()
    replica_bytes = {}
    planned = predict.plan_modes(
        plan, names, margin=options.margin, budget=options.budget
    )
    for name, mode in planned.items():
      engine = engine_lib.Engine(
          specs,
          owners=plan.owners,
          devices=self._devices,
          num_shares=1,
          keep=name != "none",
          replicas=self._options,
          cache=cache,
      )
      engine.set_roles(0, owners=mode.roles.owners, shadows=mode.roles.shadows)
      engine.compile(evaluate=False)
      engine.set_state(layers)
      node = engine.nodes[self._rank]
      replica_bytes[name] = sum(
          _nbytes(node.state[stage])
          for stage in mode.roles.replicas_of(self._rank)
      )
      order = linearize.linearize([mode.whole.timeline])
      self._modes[name] = _Mode(mode, engine, order)
    return {"replica_bytes": replica_bytes}

  def feed(self, step: str) -> dict[str, Any]:
    """Makes the batch that all modes get from now on."""
    batches = self._task.batches
    self._step = int(step)
    self._batch = [
        batches.microbatch(self._step, m)
        for m in range(batches.num_microbatches)
    ]
    return {}

  def commit(self, name: str) -> dict[str, Any]:
    """Runs a step; returns the seconds of its parts, and bytes."""
    mode = self._modes[name]
    engine = mode.engine
    start = time.perf_counter()
    self._begin(engine)
    engine.compute(mode.order)
    engine.reduce()
    computed = self._wait(engine)
    host_bytes = engine.nodes[self._rank].store.host_bytes()
    scale = 1.0 / self._weight
    refresh_bytes = engine.refresh(scale)
    refreshed = self._wait(engine)
    self._agree()
    voted = time.perf_counter()
    engine.apply(scale)
    end = self._wait(engine)
    return {
        "compute_secs": computed - start,
        "refresh_secs": refreshed - computed,
        "vote_secs": voted - refreshed,
        "apply_secs": end - voted,
        "refresh_bytes": refresh_bytes,
        "host_bytes": host_bytes,
    }

  def compute(self, name: str) -> dict[str, Any]:
    """Runs the rows of a step and forgets it."""
    mode = self._modes[name]
    start = time.perf_counter()
    self._begin(mode.engine)
    mode.engine.compute(mode.order)
    mode.engine.reduce()
    secs = self._wait(mode.engine) - start
    return {"secs": secs, "sums": self._sums(mode.engine)}

  def die(self, name: str, victim: str, at: str) -> dict[str, Any]:
    """Runs the rows of a step in which a node dies, and forgets it.

    Args:
      name: Mode.
      victim: Node that dies.
      at: Before which instruction of its row.

    Returns:
      When the victim died; or when the survivor had finished the rows, the time
      it took to plan them, and the sums, which must be those of `compute`.
    """
    mode = self._modes[name]
    engine, roles = mode.engine, mode.plan.roles
    death = deaths.plan_death(
        mode.plan.whole.timeline, victim=int(victim), at=int(at)
    )
    start = time.perf_counter()
    self._begin(engine)
    engine.compute(death.done)
    if self._rank == death.victim:
      return {"died_secs": self._wait(engine) - start}
    told = time.perf_counter()
    after, held = failover.fail_over(roles, engine.holdings(0), {death.victim})
    rest = linearize.linearize([mode.plan.rows.rest(0, after, held)])
    planned = time.perf_counter()
    engine.set_roles(0, owners=after.owners, shadows=after.shadows)
    engine.compute(rest)
    engine.reduce()
    answer = {
        "secs": self._wait(engine) - start,
        "plan_secs": planned - told,
        "num_passes": sum(not i.is_transfer for _, i in rest),
        "sums": self._sums(engine),
    }
    engine.set_roles(0, owners=roles.owners, shadows=roles.shadows)
    return answer

  def digests(self) -> dict[str, Any]:
    """Returns the hash of each state by mode and stage."""
    return {
        name: {
            stage: digest.state_sha256(
                spec_lib.split_layers(state),
                [layer.name for layer in mode.engine.specs[stage].layers],
                samples_seen=0,
            )
            for stage, state in sorted(
                mode.engine.nodes[self._rank].state.items()
            )
        }
        for name, mode in self._modes.items()
    }

  @property
  def _weight(self) -> float:
    """Number of tokens of a step."""
    length = self._config.model.options.sequence_length
    return float(self._task.batches.batch_size * length)

  def _begin(self, engine: engine_lib.Engine) -> None:
    engine.begin_step(
        self._step,
        lambda m, keys: {key: self._batch[m][key] for key in keys},
        num_microbatches=len(self._batch),
    )

  def _wait(self, engine: engine_lib.Engine) -> float:
    """Blocks until all is done, also what is kept; returns the time."""
    engine.wait()
    jax.block_until_ready(engine.nodes[self._rank].store.arrays())
    return time.perf_counter()

  def _agree(self) -> None:
    """Blocks until all processes have come here."""
    total = self._votes({self._rank: self._vote})
    jax.block_until_ready(list(total.values()))

  def _sums(self, engine: engine_lib.Engine) -> dict[int, str]:
    """Returns something that tells the sums of each local stage, to the bit."""
    (owners,) = engine.owners
    stages = [s for s, node in enumerate(owners) if node == self._rank]
    norms = np.split(
        engine.norms(),
        np.cumsum([len(engine.specs[s].layers) for s in stages])[:-1],
    )
    return {
        stage: json.dumps([value.hex() for value in values.tolist()])
        for stage, values in zip(stages, norms, strict=True)
    }

  def _specs(self, bounds: Sequence[int]) -> list[spec_lib.StageSpec]:
    return [
        dataclasses.replace(self._task.whole, first=first, last=last)
        for first, last in itertools.pairwise(bounds)
    ]


def _nbytes(tree: Any) -> int:
  return sum(a.nbytes for a in jax.tree.leaves(tree))
