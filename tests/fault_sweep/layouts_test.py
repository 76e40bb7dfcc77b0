"""One state in every layout; `bamboo verify --layouts=N` draws as many as one likes."""

import dataclasses
from unittest import mock

from absl.testing import absltest
import jax

from bamboo_jax.checkpoint import writer
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime.executables import program_store
from bamboo_jax.testing.fault_sweep import layouts as layouts_lib
from configs import sweep_faults

SweepLayout = layouts_lib.SweepLayout
GPIPE = ("pipeline.schedule", "gpipe")
TEMPLATES = ("pipeline.layout", "templates")
SPARE = ("redundancy.spares", 1)


def mode(name):
  return ("redundancy.mode", name)


# All pairs of values that are likely to meet.
COVER = (
    SweepLayout(1, 1),
    SweepLayout(2, 3, costs_seed=1),
    SweepLayout(1, 4, (GPIPE, mode("lazy")), costs_seed=2, num_devices=2),
    SweepLayout(
        *(3, 2, (mode("eager"), SPARE)), costs_seed=3, faults=(faults_lib.Fault(1, "1/0", 7),)
    ),
    SweepLayout(
        *(2, 4, (GPIPE, mode("bubble"))),
        costs_seed=4,
        faults=(faults_lib.Fault(1, "0/3", "reduce"),),
    ),
    SweepLayout(2, 2, (GPIPE, TEMPLATES, SPARE)),
)


def make_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  return config


class LayoutsTest(absltest.TestCase):

  def test_one_state(self):
    jax.devices()  # There are 8.
    layouts = layouts_lib.Layouts(make_config())
    self.assertEqual(layouts.max_stages, 4)
    states = {str(layout): layouts.run(layout) for layout in COVER}
    self.assertLen(set(states.values()), 1, msg=str(states))
    # Another partition and fewer pipelines than before compile nothing, even
    # without what other processes have left on the disk.
    programs = program_store.use()
    before = programs.num_compiled
    with mock.patch.object(programs, "folder", None):
      layouts.run(dataclasses.replace(COVER[1], num_stages=2, costs_seed=9))
      layouts.run(SweepLayout(1, 3, (mode("lazy"),), costs_seed=8))
    self.assertEqual(programs.num_compiled, before)

  def test_the_state_depends_on_the_seed(self):
    config = make_config()
    states = set()
    for seed in (0, 1):
      config.seed = seed
      states.add(layouts_lib.Layouts(config).run(COVER[0]))
    self.assertLen(states, 2)

  def test_drawn(self):
    drawn = [*layouts_lib.draw_layouts(60, seed=0, max_stages=4)]
    again = [*layouts_lib.draw_layouts(30, seed=30, max_stages=4)]
    self.assertEqual(drawn[30:], again)
    self.assertEqual({l.num_pipelines for l in drawn}, {1, 2, 3, 4, 6})
    self.assertEqual({l.num_stages for l in drawn}, {1, 2, 3, 4})

  def test_a_storm_of_all_kinds(self):
    jax.devices()
    layouts = layouts_lib.Layouts(make_config(), num_events=4)
    kinds, states = set(), {layouts.run(SweepLayout(1, 1))}
    for layout in layouts_lib.draw_layouts(3, seed=0, max_stages=3):
      with mock.patch.object(
          writer.Writer, "close", autospec=True, side_effect=writer.Writer.close
      ) as close:
        states.add(layouts.run(layout))
      close.assert_called_once()  # Or it may write into a folder that goes.
      kinds |= {fault.kind for fault in layouts.drawn}
    self.assertLen(states, 1)
    self.assertGreaterEqual(len(kinds), 3)
