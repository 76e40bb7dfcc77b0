"""A step as one program computes what the plain model computes."""

import contextlib
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule.ticks import table
from tests import plain

BATCH = {
    key: jax.ShapeDtypeStruct((2, 8), np.int32) for key in ("inputs", "targets")
}
# Whole blocks of two layers; three stages have two, one and one of them.
BOUNDS = {2: (0, 5, 10), 3: (0, 5, 7, 10), 4: (0, 3, 5, 7, 10)}


@functools.cache
def make_model(name):
  options = dict(num_blocks=4, width=16, sequence_length=8, vocab_size=32)
  if name == "gpt2":
    options |= dict(variant="tiny", num_heads=2, dropout_rate=0.1)
  return zoo.make_model(name, **options)


def make_spec(name="gpt2", *, optimizer=None, remat="full"):
  model = make_model(name)
  return spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch=BATCH,
      optimizer=optimizer or optax.sgd(1e-2),
      remat=remat,
  )


def keep_gradients():
  """Returns an optimizer whose slots are the gradients; it changes nothing."""
  zeros = lambda tree: jax.tree.map(jnp.zeros_like, tree)
  return optax.GradientTransformation(
      init=zeros, update=lambda grads, slots, params: (zeros(grads), grads)
  )


def read_grads(engine, result):
  """Returns the gradients of the sum of losses, of `keep_gradients`."""
  return {
      name: jax.tree.map(lambda g: g * result.weight, layer.slots)
      for name, layer in engine.layer_states().items()
  }


def make_table(num_stages, num_microbatches, *, budget=None):
  """Returns the ticks of 1F1B."""
  costs = costs_lib.uniform_costs(num_stages)
  schedule = scheduler.plan_rows(
      owners=range(num_stages),
      microbatches=range(num_microbatches),
      costs=costs,
      in_flight=scheduler.one_f_one_b_bounds(num_stages),
  )
  return table.lower(
      schedule, owners=range(num_stages), costs=costs, budget=budget
  )


def make_devices(num_pipelines, num_stages):
  devices = jax.devices()[: num_pipelines * num_stages]
  return np.array(devices).reshape(num_pipelines, num_stages)


def make_engine(
    num_stages,
    num_microbatches=4,
    num_pipelines=1,
    *,
    spec=None,
    budget=None,
    bounds=None,
    **options,
):
  spec = spec or make_spec()
  engine = engine_lib.SpmdEngine(
      spec,
      bounds=bounds or BOUNDS[num_stages],
      table=make_table(num_stages, num_microbatches, budget=budget),
      devices=make_devices(num_pipelines, num_stages),
      num_microbatches=num_microbatches,
      **options,
  )
  engine.set_state(initial_layers(spec))
  return engine


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


def mask_all(microbatch, keys):
  """Returns a microbatch of step 0 in which no token counts."""
  arrays = dict(feed(0)(microbatch, keys))
  if "targets" in arrays:
    arrays["targets"] = -np.ones_like(arrays["targets"])
  return arrays


def run_steps(engine, num_steps):
  return [engine.step(step, feed(step)) for step in range(num_steps)]


def find_unequal(got, want):
  """Returns the names of layers whose bits differ."""
  assert list(got) == list(want), (list(got), list(want))
  same = lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes()
  return [
      name
      for name in want
      if not all(jax.tree.leaves(jax.tree.map(same, got[name], want[name])))
  ]


@contextlib.contextmanager
def quick_compilation():
  """Lets XLA optimise little: programs differ, what they compute does not."""
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    yield
  finally:
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def plain_model():
  return plain.PlainModel(make_spec())


class GradientsTest(parameterized.TestCase):

  @parameterized.product(
      num_stages=[2, 3, 4], num_microbatches=[4, 8], num_pipelines=[1, 2]
  )
  def test_equal_those_of_the_plain_model_twice(
      self, num_stages, num_microbatches, num_pipelines
  ):
    spec = make_spec(optimizer=keep_gradients())
    engine = make_engine(num_stages, num_microbatches, num_pipelines, spec=spec)
    with quick_compilation():
      engine.compile()
    layers = initial_layers(spec)
    want, loss, weight = plain_model().grads(
        layers,
        microbatch,
        step=5,
        microbatches=range(num_pipelines * num_microbatches),
    )
    first = engine.step(5, feed(5))
    grads, state = read_grads(engine, first), engine.layer_states()
    self.assertCountEqual(grads, want)
    self.assertLessEqual(
        plain.relative_error(grads, {name: want[name] for name in grads}), 1e-6
    )
    self.assertAlmostEqual(first.loss, loss / weight, places=5)
    self.assertEqual(first.weight, weight)
    engine.set_state(layers)
    self.assertEqual(engine.step(5, feed(5)), first)
    self.assertEmpty(find_unequal(engine.layer_states(), state))


class RematTest(absltest.TestCase):

  def test_keeps_less_and_computes_the_same(self):
    spec = make_spec(remat="inputs", optimizer=keep_gradients())
    engine = make_engine(3, spec=spec)
    with quick_compilation():
      engine.compile()
    result = engine.step(5, feed(5))
    want, _, _ = plain_model().grads(
        initial_layers(spec), microbatch, step=5, microbatches=range(4)
    )
    grads = read_grads(engine, result)
    self.assertLessEqual(
        plain.relative_error(grads, {name: want[name] for name in grads}), 1e-6
    )
    full = make_engine(3).ledger().buffers["kept"]
    self.assertLess(engine.ledger().buffers["kept"], 0.25 * full)


class StatisticsTest(absltest.TestCase):

  def test_are_the_mean_of_all_microbatches(self):
    spec = make_spec("mlp_bn", optimizer=keep_gradients())
    engine = make_engine(2, 4, 2, spec=spec, bounds=(0, 4, 6), replicas=True)
    with quick_compilation():
      engine.compile()
    layers = initial_layers(spec)
    result = engine.step(0, feed(0))
    model, total = plain.PlainModel(spec), None
    want, _, _ = model.grads(layers, microbatch, step=0, microbatches=range(8))
    grads = read_grads(engine, result)
    self.assertLessEqual(
        plain.relative_error(grads, {name: want[name] for name in grads}), 1e-6
    )
    for m in range(8):
      stats = model.stats(layers, microbatch(0, m), step=0, microbatch=m)
      total = stats if total is None else jax.tree.map(np.add, total, stats)
    states = engine.layer_states()
    for name, layer in states.items():
      jax.tree.map(
          functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
          layer.stats,
          jax.tree.map(lambda a: a / 8, total[name]),
      )
    self.assertNotEmpty(jax.tree.leaves(states["block_00"].stats))
    self.assertEmpty(find_unequal(engine.replica_states(), states))


class BadNumbersTest(absltest.TestCase):
  """What `train.sums.judge` refuses leaves the state alone in here too."""

  def make(self, **options):
    engine = make_engine(2, 4, 2, replicas=True, **options)
    with quick_compilation():
      engine.compile()
    return engine

  def test_state_is_left_alone(self):
    engine = self.make()
    good = initial_layers(make_spec())
    bad = dict(good)
    name = next(n for n in good if jax.tree.leaves(good[n].params))
    bad[name] = bad[name].replace(
        params=jax.tree.map(lambda a: a * np.nan, bad[name].params)
    )
    engine.set_state(bad)
    result = engine.step(0, feed(0))
    self.assertTrue(np.isnan([result.loss, result.grad_norm]).all())
    self.assertEmpty(find_unequal(engine.layer_states(), bad))

    engine.set_state(good)
    self.assertEqual(engine.step(0, mask_all).weight, 0.0)
    self.assertEmpty(find_unequal(engine.layer_states(), good))
    self.assertEmpty(find_unequal(engine.replica_states(), good))
    result = engine.step(0, feed(0))
    self.assertGreater(result.grad_norm, 0.0)  # Although nothing is clipped.
    self.assertNotEmpty(find_unequal(engine.layer_states(), good))

  def test_apply(self):
    engine = self.make(on_nonfinite="apply")
    good = initial_layers(make_spec())
    engine.set_state(good)
    engine.step(0, mask_all)
    self.assertEmpty(find_unequal(engine.layer_states(), good))
    name = next(n for n in good if jax.tree.leaves(good[n].params))
    bad = good[name].replace(
        params=jax.tree.map(lambda a: a * np.nan, good[name].params)
    )
    engine.set_state(dict(good) | {name: bad})
    engine.step(0, feed(0))
    self.assertLen(find_unequal(engine.layer_states(), good), len(good))


class OrderTest(absltest.TestCase):

  def test_what_is_sent_hangs_on_all_passes_of_the_tick(self):
    """Else a stage may wait for another one between its two passes."""
    program = make_engine(2)._program.trace().jaxpr.jaxpr
    (mesh,) = find_equations(program, "shard_map")
    scans = find_equations(mesh.params["jaxpr"], "scan")
    ticks = [s.params["jaxpr"].jaxpr for s in scans]
    (tick,) = [t for t in ticks if find_equations(t, "ppermute")]
    passes = find_equations(tick, "while")
    self.assertLen(passes, 2)
    sends = find_equations(tick, "ppermute")
    self.assertLen(sends, 2)  # Of an activation and of a gradient.
    for send in sends:
      for one in passes:
        self.assertTrue(depends_on(tick, send, one))


def find_equations(jaxpr, name):
  return [e for e in jaxpr.eqns if e.primitive.name == name]


def depends_on(jaxpr, equation, other):
  """Returns whether any input of an equation comes from another one."""
  makers = {id(var): e for e in jaxpr.eqns for var in e.outvars}
  waiting, seen = [equation], set()
  while waiting:
    for var in waiting.pop().invars:
      maker = makers.get(id(var))
      if maker is other:
        return True
      if maker is not None and id(maker) not in seen:
        seen.add(id(maker))
        waiting.append(maker)
  return False


class MistakesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("split_block", dict(bounds=(0, 4, 10)), "layer 'block_01.mlp'"),
      ("no_replicas", dict(budget=0.0), "need replicas=True"),
      ("clip", dict(clip_norm=0.0), "clip_norm must be positive"),
      ("refresh", dict(refresh="grad"), "did you mean 'gradient'"),
  )
  def test_options(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      make_engine(2, **options)

  @parameterized.named_parameters(
      ("one_stage", lambda: dict(bounds=(0, 10)), "at least 2"),
      ("wide", lambda: dict(devices=make_devices(1, 3)), "array of shape"),
      ("flat", lambda: dict(devices=make_devices(1, 2)[0]), "2 stages"),
      (
          "shared",
          lambda: dict(devices=np.repeat(make_devices(1, 1), 2, axis=1)),
          "device of its own for each of 2 nodes, got 1",
      ),
      ("microbatches", lambda: dict(num_microbatches=3), "4 microbatches"),
      ("stages", lambda: dict(table=make_table(3, 4)), "of 3 stages"),
  )
  def test_that_do_not_fit(self, make_options, message):
    options = dict(
        bounds=BOUNDS[2],
        table=make_table(2, 4),
        devices=make_devices(1, 2),
        num_microbatches=4,
    )
    with self.assertRaisesRegex(ValueError, message):
      engine_lib.SpmdEngine(make_spec(), **{**options, **make_options()})
