"""Passes as programs compute what rows compute, whoever dies in between."""

import contextlib
import dataclasses
import functools
import itertools
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.runtime import engine as rows_engine
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule.ticks import lowering
from tests import plain

BATCH = {
    key: jax.ShapeDtypeStruct((2, 8), np.int32) for key in ("inputs", "targets")
}
# Whole blocks of two layers; three stages have two, one and one of them.
BOUNDS = {2: (0, 5, 10), 3: (0, 5, 7, 10), 4: (0, 3, 5, 7, 10)}
STEP = 5


@functools.cache
def make_spec(name="gpt2", *, remat="full", optimizer=None):
  options = dict(num_blocks=4, width=16, sequence_length=8, vocab_size=32)
  if name == "gpt2":
    options |= dict(variant="tiny", num_heads=2, dropout_rate=0.1)
  model = zoo.make_model(name, **options)
  return spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch=BATCH,
      optimizer=optimizer or optax.sgd(1e-2),
      remat=remat,
  )


@functools.cache
def initial_params(name):
  return spec_lib.init_layers(make_spec(name))


def initial_layers(spec):
  """Returns the state before the first step."""
  return {
      name: layer.replace(slots=spec.optimizer.init(layer.params))
      for name, layer in initial_params(spec.model.name).items()
  }


def microbatch(step, index):
  """Returns data that depends on these; some tokens do not count."""
  rng = np.random.default_rng((step, index))
  batch = {k: rng.integers(0, 32, a.shape, a.dtype) for k, a in BATCH.items()}
  batch["targets"][0, : index % 3] = -1
  return batch


def feed(step):
  return lambda index, keys: {k: microbatch(step, index)[k] for k in keys}


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
      order="paired",
      segment_ticks=2,
      devices=None,
  ):
    self.spec = spec = spec or make_spec()
    costs = costs_lib.uniform_costs(num_stages)
    nodes = range(num_pipelines * num_stages)
    owners = [nodes[i : i + num_stages] for i in nodes[::num_stages]]
    self.plan = rows_lib.Redundancy("lazy")
    self.num_microbatches, self.costs = num_microbatches, costs
    self.rows = rows_engine.Engine(
        [
            dataclasses.replace(spec, first=first, last=last)
            for first, last in itertools.pairwise(bounds or BOUNDS[num_stages])
        ],
        owners=owners,
        devices=devices or dict(enumerate(jax.devices())),
        num_shares=num_pipelines,
        keep=True,
    )
    self.initial = [failover.Roles.initial(row) for row in owners]
    self.reset()
    table = lowering.lower(
        self._rows(0, self.roles[0], {}),
        owners=owners[0],
        microbatches=range(num_microbatches),
        costs=costs,
        order=order,
        budget=budget,
    )
    self.programs = engine_lib.SpmdEngine(
        self.rows, spec, table, keeps=True, segment_ticks=segment_ticks
    )

  def reset(self):
    """Lets all nodes live again, as in the first step."""
    self.roles = list(self.initial)
    for p, roles in enumerate(self.roles):
      self.rows.set_roles(p, owners=roles.owners, shadows=roles.shadows)
    self.rows.set_state(initial_layers(self.spec))

  def begin(self):
    self.reset()
    self.rows.begin_step(
        STEP,
        feed(STEP),
        num_microbatches=self.num_microbatches * len(self.roles),
    )
    self.programs.begin(STEP, feed(STEP))
    for p in range(len(self.roles)):
      self.programs.plan({}, pipeline=p)

  def advance(self, num_segments=None):
    """Runs some segments, or all."""
    while not self.programs.is_done and num_segments != 0:
      self.programs.advance()
      num_segments = num_segments and num_segments - 1

  def die(self, victim, *, pipeline=0):
    """Plans the rest of the step without a node."""
    holdings = self.programs.holdings()
    self.rows.kill(victim)
    roles, left = failover.fail_over(self.roles[pipeline], holdings, {victim})
    self.roles[pipeline] = roles
    self.rows.set_roles(pipeline, owners=roles.owners, shadows=roles.shadows)
    rows = self._rows(pipeline, roles, left)
    self.programs.plan(rows, pipeline=pipeline)

  def sums(self):
    """Returns the sums of all stages, of all pipelines."""
    self.programs.put_sums()
    found = {}
    for share, row in enumerate(self.rows.owners):
      for stage, node in enumerate(row):
        store = self.rows.nodes[node].store
        found[stage, share] = jax.tree.map(
            np.array, store.accumulators[stage, share]
        )
    return found

  def sums_of_rows(self):
    """Returns the same, as rows compute them."""
    self.begin()
    order = linearize.linearize(
        [
            self.plan.plan(
                roles,
                microbatches=self._microbatches(p),
                costs=self.costs,
                in_flight=None,
            ).timeline
            for p, roles in enumerate(self.roles)
        ]
    )
    with quick_compilation():
      self.rows.compute(order)
    self.programs.runs = {}
    return self.sums()

  def _microbatches(self, pipeline):
    first = pipeline * self.num_microbatches
    return range(first, first + self.num_microbatches)

  def _rows(self, pipeline, roles, holdings):
    return self.plan.plan(
        roles,
        microbatches=self._microbatches(pipeline),
        costs=self.costs,
        in_flight=None,
        holdings=holdings,
    ).schedule.rows


@functools.cache
def plain_model(name):
  return plain.PlainModel(make_spec(name))


def find_unequal(got, want):
  """Returns the keys whose bits differ."""
  same = lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes()
  return [
      key
      for key in want
      if not all(jax.tree.leaves(jax.tree.map(same, got[key], want[key])))
  ]


def relative_error(sums, spec, num_microbatches):
  """Returns how far sums are from gradients of the plain model."""
  want, loss, weight = plain_model(spec.model.name).grads(
      initial_layers(spec),
      microbatch,
      step=STEP,
      microbatches=range(num_microbatches),
  )
  grads, total = {}, np.zeros(2)
  for part in sums.values():
    for name, layer in part.grads.items():
      zero = jax.tree.map(np.zeros_like, layer)
      grads[name] = jax.tree.map(np.add, grads.get(name, zero), layer)
    if part.loss is not None:
      total = total + part.loss
  np.testing.assert_allclose(total, [loss, weight], rtol=1e-5)
  for layer in spec.model.layers:  # Copies are summed in a later phase.
    for tie in layer.ties:
      both = grads[layer.name][tie.param] + grads[tie.layer][tie.layer_param]
      grads[layer.name][tie.param] = grads[tie.layer][tie.layer_param] = both
  return plain.relative_error(grads, {name: want[name] for name in grads})


def assert_statistics(sums, spec, num_microbatches):
  """Fails unless statistics are summed over microbatches."""
  model, layers = plain_model(spec.model.name), initial_layers(spec)
  found = [
      model.stats(layers, microbatch(STEP, m), step=STEP, microbatch=m)
      for m in range(num_microbatches)
  ]
  want = jax.tree.map(lambda *a: np.sum(a, axis=0), *found)
  for part in sums.values():
    for name, stats in part.stats.items():
      jax.tree.map(
          lambda a, b: np.testing.assert_allclose(
              a, np.reshape(b, a.shape), rtol=1e-5, atol=1e-6
          ),
          stats,
          want[name],
      )


def count_compilations():
  """Returns a list that grows with every program that XLA compiles."""
  events = []
  listener = lambda name, secs, **_: (
      events.append(name) if "backend_compile" in name else None
  )
  jax.monitoring.register_event_duration_secs_listener(listener)
  return events


@functools.cache
def make_three():
  """Returns two pipelines of three unequal stages, compiled."""
  made = Pipelines(3, 4, 2)
  with quick_compilation():
    made.programs.compile()
  return made


@functools.cache
def undisturbed():
  made = make_three()
  made.begin()
  made.advance()
  return made.sums()


class SumsTest(parameterized.TestCase):

  def test_are_those_of_the_plain_model(self):
    sums = undisturbed()
    self.assertLen(sums, 6)
    self.assertLessEqual(relative_error(sums, make_spec(), 8), 1e-6)

  def test_have_the_bits_of_rows(self):
    # As units are blocks, and every program is compiled alike.
    want = make_three().sums_of_rows()
    self.assertLen(want, 6)
    self.assertEmpty(find_unequal(undisturbed(), want))

  @parameterized.named_parameters(
      ("single", {"order": "single"}, make_spec()),
      ("remat", {}, make_spec(remat="inputs")),
      ("no_redundant", {"budget": None}, make_spec()),
      ("statistics", {"bounds": (0, 4, 6)}, make_spec("mlp_bn")),
  )
  def test_with_two_stages(self, options, spec):
    made = Pipelines(2, spec=spec, **options)
    with quick_compilation():
      made.begin()
      made.advance()
      sums = made.sums()
      self.assertLessEqual(relative_error(sums, spec, 4), 1e-6)
      assert_statistics(sums, spec, 4)
      made.begin()
      made.advance(2)
      made.die(0)
      made.advance()
    self.assertEmpty(find_unequal(made.sums(), sums))


class DeathTest(parameterized.TestCase):

  @parameterized.product(victim=[0, 1, 2], num_segments=[0, 1, 2, 3, 4])
  def test_sums_keep_their_bits(self, victim, num_segments):
    want, made = undisturbed(), make_three()
    events, fetched = count_compilations(), made.programs.num_fetched
    made.begin()
    made.advance(num_segments)
    # The programs that the victim was part of are of no use any more.
    broken = made.programs.runs[0].program
    self.enterContext(poison(broken))
    made.die(victim)
    made.advance()
    self.assertEmpty(find_unequal(made.sums(), want))
    self.assertEmpty(events)
    if num_segments == 4:
      self.assertGreaterEqual(made.programs.num_fetched - fetched, 3)

  def test_a_death_of_a_node_that_has_taken_over(self):
    made = Pipelines(4, 4)
    with quick_compilation():
      made.begin()
      made.advance()
      want = made.sums()
      made.begin()
      made.advance(2)
      made.die(2)
      made.advance(1)
      made.die(0)
      made.advance()
    self.assertEmpty(find_unequal(made.sums(), want))

  def test_a_program_that_fails(self):
    made, want = make_three(), undisturbed()
    made.begin()
    made.advance(2)
    broken = made.programs.runs[0].program
    with poison(broken):
      with self.assertRaisesRegex(RuntimeError, "A peer has died"):
        made.programs.advance()
      # The other pipeline has gone on.
      runs = made.programs.runs
      self.assertEqual([runs[p].num_segments for p in (0, 1)], [2, 3])
      made.die(1)
      made.advance()
    self.assertEmpty(find_unequal(made.sums(), want))


@contextlib.contextmanager
def poison(program):
  """Lets a program fail once it is started."""
  compiled = program.segment

  def fail(*args):
    raise RuntimeError("A peer has died.")

  program.segment = fail
  try:
    yield
  finally:
    program.segment = compiled


class ProgramTest(absltest.TestCase):

  def test_does_not_call_the_host(self):
    text = make_three().programs.runs[0].program.segment.as_text()
    for word in ("callback", "custom-call", "infeed", "outfeed", " send("):
      self.assertNotIn(word, text)
    self.assertIn("collective-permute", text)
    inside = text.split("ENTRY")[0]
    self.assertIn("S(5)", inside)  # Host memory, not only at the end.

  def test_buffers_are_not_copied(self):
    program = make_three().programs.runs[0].program
    # Where the program begins and ends, what it has been given stays.
    text = program.segment.as_text().split("ENTRY")[0]
    for array in jax.tree.leaves(program.carry.kept):
      shape = re.escape(str(list(array.shape)).replace(" ", ""))
      self.assertNotEmpty(re.findall(rf"= \w+{shape}\S* \w+", text))
      self.assertEmpty(re.findall(rf"= \w+{shape}\S* copy\(", text))

  def test_residuals_hold_no_parameters(self):
    kept = make_three().programs.runs[0].program.carry.kept.residuals
    params = jax.tree.leaves(initial_layers(make_spec())["block_00.mlp"].params)
    large = {a.shape for a in params if a.ndim > 1}
    self.assertEmpty(large & {a.shape[2:] for a in kept})


class MistakesTest(parameterized.TestCase):

  def test_stages_and_devices(self):
    with self.assertRaisesRegex(ValueError, "layer 'block_01.mlp'"):
      Pipelines(2, bounds=(0, 4, 10))
    with self.assertRaisesRegex(ValueError, "rise from 0 to 10|at least 2"):
      Pipelines(1, bounds=(0, 10))
    with self.assertRaisesRegex(ValueError, "each of 2 nodes, got 1"):
      Pipelines(2, devices=dict.fromkeys(range(2), jax.devices()[0]))


if __name__ == "__main__":
  absltest.main()
