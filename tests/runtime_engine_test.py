"""A pipelined step computes what the plain model computes."""

import dataclasses
import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax.data import batches as batches_lib
from bamboo_jax.data import source as source_lib
from bamboo_jax.models import zoo
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline
from tests import plain

MICROBATCH_SIZE = 2


@functools.cache
def make_source():
  return source_lib.make_source("synthetic", sequence_length=32, vocab_size=64)


def make_batches(num_microbatches):
  return batches_lib.Batches(
      make_source(),
      seed=0,
      num_microbatches=num_microbatches,
      microbatch_size=MICROBATCH_SIZE,
  )


@functools.cache
def make_whole(**changes):
  model = zoo.make_model(
      "gpt2", variant="tiny", vocab_size=64, dropout_rate=0.1
  )
  shape = (MICROBATCH_SIZE, 32)
  return spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch={
          key: jax.ShapeDtypeStruct(shape, np.int32)
          for key in ("inputs", "targets")
      },
      optimizer=optax.adamw(1e-3),
      **changes,
  )


@functools.cache
def make_plain():
  return plain.PlainModel(make_whole())


@functools.cache
def initial_layers():
  return spec_lib.init_layers(make_whole())


def cut(num_stages):
  """Returns the specs of stages with about as many layers each."""
  whole = make_whole()
  bounds = np.linspace(0, len(whole.model.layers), num_stages + 1).astype(int)
  return [
      dataclasses.replace(whole, first=int(first), last=int(last))
      for first, last in itertools.pairwise(bounds)
  ]


@functools.cache
def make_engine(num_stages, num_pipelines, num_shares, link_kind="auto"):
  engine = engine_lib.Engine(
      cut(num_stages),
      owners=np.arange(num_pipelines * num_stages)
      .reshape(num_pipelines, num_stages)
      .tolist(),
      devices=dict(enumerate(jax.devices())),
      num_shares=num_shares,
      link_kind=link_kind,
  )
  engine.compile(evaluate=False)
  engine.set_state(initial_layers())
  return engine


def run_step(engine, *, num_microbatches, step=0, in_flight="1f1b"):
  """Runs one step up to the sums, with `num_microbatches` per pipeline."""
  num_stages, num_pipelines = len(engine.specs), len(engine.owners)
  costs = costs_lib.uniform_costs(num_stages)
  timelines = []
  for pipeline, owners in enumerate(engine.owners):
    first = pipeline * num_microbatches
    microbatches = range(first, first + num_microbatches)
    schedule = scheduler.plan_rows(
        owners=owners,
        microbatches=microbatches,
        costs=costs,
        in_flight=scheduler.one_f_one_b_bounds(num_stages)
        if in_flight == "1f1b"
        else None,
    )
    timelines.append(
        timeline.play(
            schedule, owners=owners, microbatches=microbatches, costs=costs
        )
    )
  batches = make_batches(num_pipelines * num_microbatches)
  engine.begin_step(
      step,
      lambda m, keys: batches.microbatch(step, m, keys),
      num_microbatches=batches.num_microbatches,
  )
  engine.compute(linearize.linearize(timelines))
  engine.tie()
  engine.reduce()
  engine.wait()
  return batches


class GradientsTest(parameterized.TestCase):

  @parameterized.product(
      num_stages=[1, 2, 3, 4], num_microbatches=[1, 3, 8], num_pipelines=[1, 2]
  )
  def test_equal_those_of_the_plain_model(
      self, num_stages, num_microbatches, num_pipelines
  ):
    engine = make_engine(num_stages, num_pipelines, num_pipelines)
    batches = run_step(engine, num_microbatches=num_microbatches, step=5)
    want, loss, weight = make_plain().grads(
        initial_layers(),
        batches.microbatch,
        step=5,
        microbatches=range(num_pipelines * num_microbatches),
    )
    for pipeline in range(num_pipelines):
      got = engine.grads(pipeline)
      self.assertLessEqual(plain.relative_error(got, want), 1e-6)
    np.testing.assert_allclose(engine.loss(), [loss, weight], rtol=1e-6)


if __name__ == "__main__":
  absltest.main()
