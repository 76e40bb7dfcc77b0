"""Models are read as prologue, equal blocks and epilogue."""

import dataclasses
import itertools

from absl.testing import parameterized

from bamboo_jax.models import layer as layer_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from tests.runtime.spmd import pipelines


class FindBlocksTest(parameterized.TestCase):

  @parameterized.parameters(
      ("", None),
      ("a", None),
      ("abc", None),
      ("aa", (0, 1, 2)),
      ("eaah", (1, 1, 2)),
      ("eababh", (1, 2, 2)),
      ("eaaaah", (1, 1, 4)),  # Not two blocks of two.
      ("eababah", (1, 2, 2)),
      ("aabcbcbc", (2, 2, 3)),  # The one that covers most.
      ("eabcabch", (1, 3, 2)),
  )
  def test_longest_repetition(self, signatures, want):
    found = layout_lib.find_blocks(signatures)
    self.assertEqual(found and dataclasses.astuple(found)[:3], want)


class LayoutTest(parameterized.TestCase):

  def test_gpt2(self):
    layout = layout_lib.make_layout(pipelines.make_spec(num_blocks=4), [0, 5, 10])
    self.assertEqual(layout.count, 2)
    self.assertEqual([layout.first_layer(s) for s in range(2)], [1, 5])
    self.assertEqual(
        (layout.prologue, layout.block, layout.epilogue), (range(1), range(1, 3), range(9, 10))
    )
    self.assertEqual(layout_lib.split_blocks(pipelines.make_spec(num_blocks=4), 4).cuts, (3, 5, 7))

  @parameterized.parameters(1, 2, 3, 6)
  def test_stages_have_every_layer_once(self, num_stages):
    spec = pipelines.make_spec(num_blocks=6)
    bounds = (0, *layout_lib.split_blocks(spec, num_stages).cuts, 14)
    layout = layout_lib.make_layout(spec, bounds)
    for stage, ends in enumerate(itertools.pairwise(bounds)):
      parts = layout.parts_of(stage, 3)
      self.assertEqual([i for _, _, layers in parts for i in layers], [*range(*ends)])
      blocks = [(3, k) for k in range(6 // num_stages)]
      self.assertEqual([at for name, at, _ in parts if name == "blocks"], blocks)
      names = ["prologue"] * (not stage) + ["epilogue"] * (stage == num_stages - 1)
      self.assertEqual([name for name, _, _ in parts if name != "blocks"], names)

  @parameterized.parameters(
      (4, 3, "num_stages=3 does not divide the 4 equal blocks.*executor='rows'"),
      (1, 1, "'block_00.attention' differs from 'embed'.*executor='rows'"),
  )
  def test_refuses(self, num_blocks, num_stages, problem):
    with self.assertRaisesRegex(ValueError, problem):
      layout_lib.split_blocks(pipelines.make_spec(num_blocks=num_blocks), num_stages)

  def test_tied_block(self):
    spec = pipelines.make_spec(num_blocks=3)
    layers = list(spec.model.layers)
    tie = layer_lib.Tie("out_weight", layers[1].name, "out_weight")
    layers[3] = dataclasses.replace(layers[3], ties=(tie,))
    model = dataclasses.replace(spec.model, layers=tuple(layers))
    problem = "'block_00.attention' of a repeating block shares"
    with self.assertRaisesRegex(ValueError, problem):
      layout_lib.split_blocks(dataclasses.replace(spec, model=model))
