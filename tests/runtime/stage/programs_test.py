"""A stage runs its units; a redundant pass keeps what a forward pass keeps."""

import dataclasses
from unittest import mock

from absl.testing import absltest, parameterized
import jax
import numpy as np

from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.stage import functions as functions_lib, spec as spec_lib
from tests.runtime import engine_test as engines


def bits(tree):
  return [np.asarray(a).tobytes() for a in jax.tree.leaves(tree)]


def memory_kinds(tree):
  return {a.sharding.memory_kind for a in jax.tree.leaves(tree)}


class Stage:
  """Some layers of a small GPT-2 on a device, and the arguments of a pass."""

  def __init__(self, first, last, *, cache=None, whole=None):
    whole = whole or engines.make_whole()
    self.spec = dataclasses.replace(whole, first=first, last=last)
    self.cache = cache or program_cache.ProgramCache()
    self.device = jax.devices()[1]
    self.programs = self.cache.get(self.spec, self.device)
    put = lambda tree: jax.device_put(tree, self.device)
    state = spec_lib.merge_layers(spec_lib.init_layers(self.spec))
    self.state = put(state)
    rng = np.random.default_rng(0)
    random = lambda a: rng.standard_normal(a.shape).astype(a.dtype)
    self.inputs = put(jax.tree.map(random, self.spec.inputs))
    self.grad = put(jax.tree.map(random, self.spec.outputs))
    batch = engines.make_batches(1).microbatch(0, 0)
    batch = {k: batch[k] for k in self.spec.batch_keys}
    self.data = put((batch, np.uint32(3), np.uint32(1)))

  def run(self, name, *args):
    token = self.programs.token()
    return getattr(self.programs, name)(token, self.state, *args)[1:]

  def backward(self, kept):
    zeros = self.programs.zeros(self.programs.token())
    return self.run("backward", self.inputs, kept, self.grad, zeros)


class TraceTest(absltest.TestCase):

  def test_what_is_traced_without_a_device_is_not_traced_again(self):
    stage = Stage(0, 3)
    stage.cache.trace(stage.spec)
    again = AssertionError("traced again")
    functions = functions_lib.UnitFunctions
    with (
        mock.patch.object(functions, "forward", side_effect=again),
        mock.patch.object(functions, "backward", side_effect=again),
    ):
      stage.programs.compile(["forward", "backward", "redundant"])
      with self.assertRaisesRegex(AssertionError, "traced again"):
        Stage(0, 3).programs.compile(["forward"])


class RedundantTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("first_stage", 0, 3), ("last_stage", 1, 6), ("the_loss_alone", 5, 6)
  )
  def test_keeps_what_a_forward_pass_keeps(self, first, last):
    stage = Stage(first, last)
    outputs, kept = stage.run("forward", stage.inputs, *stage.data)
    on_host, ahead = stage.run("redundant", stage.inputs, *stage.data)
    self.assertLessEqual(memory_kinds((on_host, ahead)), {"pinned_host"})
    self.assertEqual(bits(on_host), bits(outputs))
    place = jax.sharding.SingleDeviceSharding(stage.device)
    fetched = jax.device_put(ahead, place)
    if first == 5:
      self.assertEmpty(jax.tree.leaves((on_host, ahead)))
    if stage.spec.is_last:
      self.assertIsNone(fetched[-1].residuals)
      (fetched,) = stage.run("complete", stage.inputs, fetched, *stage.data)
    self.assertEqual(bits(fetched), bits(kept))
    self.assertEqual(bits(stage.backward(fetched)), bits(stage.backward(kept)))

  @parameterized.parameters(3, 6)
  def test_residuals_may_stay_on_the_device(self, last):
    stage = Stage(last - 3, last)
    _, kept = stage.run("forward", stage.inputs, *stage.data)
    stage.cache.residuals = "device"
    stage.programs = stage.cache.get(stage.spec, stage.device)
    outputs, ahead = stage.run("redundant", stage.inputs, *stage.data)
    self.assertLessEqual(memory_kinds((outputs, ahead)), {"device"})
    if any(one.residuals is None for one in ahead):
      (ahead,) = stage.run("complete", stage.inputs, ahead, *stage.data)
    self.assertEqual(bits(stage.backward(ahead)), bits(stage.backward(kept)))


class KindsTest(absltest.TestCase):

  def test_blocks_share_programs(self):
    kinds = [unit.kind for unit in engines.make_whole().units]
    self.assertLen(kinds, 4)
    self.assertLen(set(kinds), 3)
    self.assertEqual(kinds[1], kinds[2])

  def test_blocks_differ_in_their_dropout(self):
    first = Stage(1, 3)
    second = Stage(3, 5, cache=first.cache)
    second.state = jax.tree.unflatten(
        jax.tree.structure(second.state), jax.tree.leaves(first.state)
    )
    one, other = (stage.run("forward", first.inputs, *stage.data)[0] for stage in (first, second))
    self.assertNotEqual(bits(one), bits(other))
