"""A pipelined step computes what the plain model computes."""

import dataclasses
import functools
import itertools

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax.data import batches as batches_lib, source as source_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead, reduce
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.schedule import failover, lines as lines_lib, simulate, timeline
from tests import plain, samples, schedules

MICROBATCH_SIZE = 3
CACHE = programs_lib.ProgramCache()


@functools.cache
def make_source():
  return source_lib.make_source("synthetic", sequence_length=32, vocab_size=64)


def make_batches(num_microbatches):
  return batches_lib.Batches(
      make_source(), seed=0, num_microbatches=num_microbatches, microbatch_size=MICROBATCH_SIZE
  )


@functools.cache
def make_whole(**changes):
  model = zoo.make_model("gpt2", variant="tiny", vocab_size=64, dropout_rate=0.1)
  batch = model.batch_shapes(MICROBATCH_SIZE)
  return spec_lib.StageSpec(model, 0, len(model.layers), batch, optax.adamw(1e-3), **changes)


@functools.cache
def make_plain():
  return plain.PlainModel(make_whole())


@functools.cache
def initial_layers():
  return spec_lib.init_layers(make_whole())


def cut(num_stages):
  """Returns the specs of stages with about as many units each."""
  whole = make_whole()
  starts = [*(unit.first for unit in whole.units), whole.last]
  places = np.linspace(0, len(starts) - 1, num_stages + 1).astype(int)
  return whole.cut([starts[place] for place in places])


def build(specs, owners, *, num_devices=8, **options):
  """Returns an engine without state, whose nodes have devices in turn, and a share a pipeline."""
  devices = {node: jax.devices()[node % num_devices] for row in owners for node in row}
  options = dict(devices=devices, num_shares=len(owners)) | options
  return engine_lib.Engine(specs, owners=owners, **options)


@functools.cache
def make_engine(num_stages, num_pipelines, *, remat="full", num_devices=8):
  nodes = range(num_pipelines * num_stages)
  specs = [dataclasses.replace(s, remat=remat) for s in cut(num_stages)]
  owners = [nodes[i : i + num_stages] for i in nodes[::num_stages]]
  engine = build(specs, owners, num_devices=num_devices, cache=CACHE)
  compile_ahead.compile_all(engine, evaluate=False)
  engine.set_state(initial_layers())
  return engine


def play(engine, *, num_microbatches, in_flight="1f1b"):
  """Returns the timelines of a step, `num_microbatches` per pipeline."""
  num_stages = len(engine.specs)
  costs = schedules.uniform_costs(num_stages)
  bounds = lines_lib.in_flight_limits(num_stages) if in_flight == "1f1b" else None
  timelines = []
  per_share = num_microbatches * len(engine.owners) // engine.num_shares
  for owners, shares in engine.lines:
    microbatches = [m for s in shares for m in range(s * per_share, (s + 1) * per_share)]
    lines = [lines_lib.Line(owners, microbatches, bounds)]
    timelines.append(simulate.simulate(lines, costs=costs))
  return timelines


def compute(engine, timelines):
  for number, instruction in timeline.linearize(timelines):
    engine.nodes[number].run(instruction)


def run(engine, feed, *, num_microbatches, step=0, in_flight="1f1b"):
  """Runs one step up to the sums, with `num_microbatches` per pipeline."""
  engine.begin_step(step, feed, num_microbatches=len(engine.owners) * num_microbatches)
  timelines = play(engine, num_microbatches=num_microbatches, in_flight=in_flight)
  compute(engine, timelines)
  reduce.tie(engine)
  reduce.reduce(engine)
  engine.wait()


def run_step(engine, *, num_microbatches, step=0, in_flight="1f1b"):
  """Runs it with `make_batches`, which it returns."""
  batches = make_batches(len(engine.owners) * num_microbatches)
  feed = lambda m, keys: batches.microbatch(step, m, keys)
  run(engine, feed, num_microbatches=num_microbatches, step=step, in_flight=in_flight)
  return batches


def grads_of(engine, pipeline=0):
  """Returns the gradients of all layers; the nodes of a pipeline have them."""
  grads = {}
  for stage, number in enumerate(engine.owners[pipeline]):
    for unit in engine.specs[stage].units:
      total = engine.nodes[number].store.totals[unit.first]
      grads |= zip(unit.names, total.grads, strict=True)
  return grads


class GradientsTest(parameterized.TestCase):

  @parameterized.parameters(
      *((1, 1, 1), (4, 8, 2)), *samples.draw(itertools.product((1, 2, 3, 4), (1, 3, 8), (1, 2)), 4)
  )
  def test_equal_those_of_the_plain_model(self, num_stages, num_microbatches, num_pipelines):
    engine = make_engine(num_stages, num_pipelines)
    engine.set_state(initial_layers())  # Other tests train it.
    batches = run_step(engine, num_microbatches=num_microbatches, step=5)
    want, loss, weight = make_plain().grads(
        initial_layers(),
        batches.microbatch,
        step=5,
        microbatches=range(num_pipelines * num_microbatches),
    )
    for pipeline in range(num_pipelines):
      self.assertLessEqual(plain.relative_error(grads_of(engine, pipeline), want), 1e-6)
    np.testing.assert_allclose(reduce.loss(engine), [loss, weight], rtol=1e-6)


class BitsTest(parameterized.TestCase):
  """Whatever only moves work around gives the same bits."""

  def test_of_fewer_pipelines_with_unequal_shares(self):
    engine = make_engine.__wrapped__(2, 3)
    want = None
    for owners, shares, in_flight in (
        ([(0, 1), (2, 3), (4, 5)], [(0,), (1,), (2,)], "1f1b"),
        ([(0, 1), (4, 5)], [(0, 2), (1,)], "gpipe"),
        ([(4, 5)], [(0, 1, 2)], "1f1b"),
    ):
      roles = [*map(failover.Roles, owners)]
      engine.set_pipelines(roles, [*zip(owners, shares, strict=True)])
      holding = {n for n, node in engine.nodes.items() if node.state}
      self.assertEqual(holding, {node for row in owners for node in row})
      run_step(engine, num_microbatches=6 // len(owners), in_flight=in_flight)
      got = jax.tree.map(np.asarray, grads_of(engine))
      want = want or got
      jax.tree.map(np.testing.assert_array_equal, got, want)


class RematTest(parameterized.TestCase):

  def test_keeps_less_and_computes_the_same(self):
    kept, grads = {}, {}
    for remat in ("full", "dots", "inputs", "mlp=inputs"):
      units = dataclasses.replace(make_whole(), remat=remat).units[:2]
      saved = [programs_lib.UnitPrograms(unit).saved for unit in units]
      kept[remat] = spec_lib.nbytes([one.residuals for one in saved])
    for least in ("dots", "mlp=inputs"):
      self.assertLess(kept["inputs"], kept[least])
      self.assertLess(kept[least], kept["full"])
    for remat in ("full", "mlp=inputs"):
      engine = make_engine(2, 1, remat=remat)
      run_step(engine, num_microbatches=1)
      grads[remat] = jax.tree.map(np.asarray, grads_of(engine))
    self.assertLessEqual(plain.relative_error(grads["mlp=inputs"], grads["full"]), 1e-6)

  @parameterized.parameters(
      ("input", "did you mean 'inputs'"),
      ("mlp=input", "did you mean 'inputs'"),
      ("mpl=inputs", "did you mean 'mlp'"),
      ("mlp=dots,inputs", "layer of remat"),
      ("", "remat policy"),
  )
  def test_unknown(self, remat, message):
    with self.assertRaisesRegex(ValueError, message):
      dataclasses.replace(make_whole(), remat=remat)
