"""Pipelines of a small model whose passes are programs, for tests."""

import contextlib
import functools

import jax
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.models import zoo
from bamboo_jax.runtime.spmd import (
    executor as executor_lib,
    layout as layout_lib,
    plan as plan_lib,
    program as program_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import (
    failover,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)
from tests import schedules
from tests.runtime import engine_test as engines

BATCH = {key: jax.ShapeDtypeStruct((2, 8), np.int32) for key in ("inputs", "targets")}
# Whole blocks of two layers: two, two and one in a stage.
BOUNDS = {2: (0, 5, 10), 3: (0, 5, 9, 14), 4: (0, 3, 5, 7, 10)}
STEP = 5
_TEXT_MODELS = {
    "gpt2": dict(variant="tiny", num_heads=2, dropout_rate=0.1),
    "llama": dict(variant="tiny", num_heads=2, num_kv_heads=1, head_width=8, hidden_width=24),
}


@functools.cache
def make_spec(
    name="gpt2", *, num_blocks=4, remat="full", optimizer=None, prng="threefry2x32", **options
):
  sizes = dict(num_blocks=num_blocks, width=16, sequence_length=8, vocab_size=32)
  model = zoo.make_model(name, **sizes, **_TEXT_MODELS.get(name, {}), **options)
  optimizer = optimizer or optax.sgd(1e-2)
  return spec_lib.StageSpec(model, 0, len(model.layers), BATCH, optimizer, remat=remat, prng=prng)


def microbatch(step, index):
  """Returns data that depends on these; some tokens do not count."""
  rng = np.random.default_rng((step, index))
  batch = {k: rng.integers(0, 32, a.shape, a.dtype) for k, a in BATCH.items()}
  batch["targets"][0, : index % 3] = -1
  return batch


def feed(step):
  return lambda index, keys: {k: microbatch(step, index)[k] for k in keys}


def count_compilations():
  """Returns a list that grows with every program that XLA compiles."""
  events = []
  listener = lambda name, secs, **_: (events.append(name) if "backend_compile" in name else None)
  jax.monitoring.register_event_duration_secs_listener(listener)
  return events


@contextlib.contextmanager
def quick_compilation():
  """Lets XLA optimise little: programs differ, what they compute does not."""
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", False)


class Pipelines:
  """Pipelines with programs, and the engine of rows beside them."""

  def __init__(
      self,
      num_stages,
      num_microbatches=4,
      num_pipelines=1,
      *,
      spec=None,
      bounds=None,
      budget=0.0,
      segment_ticks=2,
      num_devices=8,
  ):
    self.spec = spec = spec or make_spec(num_blocks=6 if num_stages == 3 else 4)
    costs = schedules.uniform_costs(num_stages)
    nodes = range(num_pipelines * num_stages)
    owners = [nodes[i : i + num_stages] for i in nodes[::num_stages]]
    self.num_microbatches, self.costs = num_microbatches, costs
    bounds = bounds or BOUNDS[num_stages]
    self.rows = engines.build(spec.cut(bounds), owners, num_devices=num_devices, keep=True)
    self.initial = [failover.Roles.initial(row) for row in owners]
    self.layers = spec_lib.init_layers(spec)
    self.reset()
    table = ticks_lib.lower(
        self._simulate(0).slots, owners=owners[0], microbatches=range(num_microbatches)
    )
    if budget is not None:
      table = ticks_lib.fill(table, costs=costs, budget=budget)
    sizes = program_lib.find_sizes(table, keeps=True, segment_ticks=segment_ticks)
    layout = layout_lib.make_layout(spec, bounds)
    step = plan_lib.ProgramPlan(None, layout, table, sizes)
    self.programs = executor_lib.Programs(step, spec, self.rows, members=self)

  @property
  def hosted(self):
    return frozenset(self.rows.nodes)

  def check(self):
    """Ends `advance` before another segment starts."""
    if not self.num_left:
      raise base.ViewChangedError
    self.num_left -= 1

  def reset(self, dead=()):
    """Lets all nodes live again, as in the first step, without the dead."""
    self.roles = list(self.initial)
    for victim in dead:
      roles, _ = failover.fail_over(self.roles[0], {victim})
      self.roles[0] = failover.Roles.initial(roles.owners)
    self._set_roles()
    self.rows.set_state(self.layers)

  def begin(self, dead=()):
    """Begins a step; nodes of the first pipeline have died before it."""
    self.reset(dead)
    self.rows.begin_step(STEP, feed(STEP), num_microbatches=self.num_microbatches * len(self.roles))
    self.programs.begin(STEP, feed(STEP))
    self.programs.plan([*map(self._simulate, range(len(self.roles)))])

  def advance(self, num_segments=-1):
    """Runs some segments, or all."""
    self.num_left = num_segments
    with contextlib.suppress(base.ViewChangedError):
      self.programs.compute(lambda node: None, None)

  def die(self, victim, *, pipeline=0):
    """Plans the rest of the step without a node."""
    holdings = self.programs.holdings(is_begun=True)
    self.rows.kill(victim)
    roles, _ = failover.fail_over(self.roles[pipeline], {victim})
    left = failover.find_valid(roles, holdings)
    self.roles[pipeline] = roles
    self._set_roles()
    self.programs.plan([self._simulate(p, left) for p in range(len(self.roles))])

  def sums(self):
    """Returns the sums of all stages, of all pipelines."""
    self.programs.put_sums()
    found = {}
    for share, row in enumerate(self.rows.owners):
      for stage, node in enumerate(row):
        store = self.rows.nodes[node].store
        for unit in self.rows.specs[stage].units:
          total = jax.tree.map(np.array, store.accumulators[unit.first, share])
          found[unit.first, share] = total
    return found

  def sums_of_rows(self):
    """Returns the same, as rows compute them."""
    self.begin()
    order = timeline_lib.linearize([*map(self._simulate, range(len(self.roles)))])
    with quick_compilation():
      for number, instruction in order:
        self.rows.nodes[number].run(instruction)
    self.programs.runs = {}
    return self.sums()

  def _set_roles(self):
    shares = [shares for _, shares in self.rows.lines]
    lines = zip((roles.owners for roles in self.roles), shares, strict=True)
    self.rows.set_pipelines(self.roles, [*lines])

  def _microbatches(self, pipeline):
    first = pipeline * self.num_microbatches
    return range(first, first + self.num_microbatches)

  def _simulate(self, pipeline, holdings=None):
    owners = self.roles[pipeline].owners
    bounds = lines_lib.in_flight_limits(len(owners))
    line = lines_lib.Line(owners, self._microbatches(pipeline), bounds)
    return simulate_lib.simulate([line], costs=self.costs, holdings=holdings)


def find_unequal(got, want):
  """Returns the keys whose bits differ."""
  same = lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes()
  return [key for key in want if not all(jax.tree.leaves(jax.tree.map(same, got[key], want[key])))]


@functools.cache
def make_three():
  """Returns two pipelines of three stages, compiled."""
  made = Pipelines(3, 4, 2)
  with quick_compilation():
    for job in made.programs.jobs(made.rows.lines):
      job()
  return made


@functools.cache
def undisturbed():
  made = make_three()
  made.begin()
  made.advance()
  return made.sums()


@functools.cache
def make_four():
  """Returns a pipeline of four stages, and its sums if nobody dies."""
  made = Pipelines(4, 4)
  with quick_compilation():
    made.begin()
    made.advance()
  return made, made.sums()
