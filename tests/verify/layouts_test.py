"""One state in every layout; `bamboo verify --layouts=N` draws as many as one likes."""

import json
import pathlib
import re
from unittest import mock

from absl.testing import absltest
import jax

from bamboo_jax.benchmarks import interleave
from bamboo_jax.checkpoint import writer
from bamboo_jax.runtime import program_store
from bamboo_jax.training.setup import accept
from bamboo_jax.verify import cases, layouts as layouts_lib, table
from configs import sweep_faults
from tests import samples
from tests.verify import small

GPIPE = ("pipeline.schedule", "gpipe")
TEMPLATES = ("pipeline.layout", "templates")
SPARE = ("redundancy.spares", 1)


def mode(name):
  return ("redundancy.mode", name)


def make_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  return accept.accept(config)


def make_layout(num_pipelines, num_stages, *settings, **more):
  sizes = {
      **layouts_lib.split_batch(make_config(), num_pipelines),
      "pipeline.num_stages": num_stages,
      "redundancy.mode": "none",
  }
  return layouts_lib.SweepLayout(tuple({**sizes, **dict(settings)}.items()), number=0, **more)


# All pairs of values that are likely to meet; the first two have all programs.
COVER = (
    (make_layout(2, 3, costs_seed=1), ""),
    (make_layout(1, 4, GPIPE, mode("lazy"), costs_seed=2, num_devices=2), ""),
)
MORE = (
    (make_layout(3, 2, mode("eager"), SPARE, costs_seed=3), "1,1/0,7,kill"),
    (make_layout(2, 4, GPIPE, mode("bubble"), costs_seed=4), "1,0/3,reduce,kill"),
    (make_layout(2, 2, GPIPE, TEMPLATES, SPARE), ""),
)


class LayoutsTest(absltest.TestCase):

  def test_one_state(self):
    jax.devices()  # There are 8.
    drawn = (*COVER, *samples.draw(MORE, 1))
    run = lambda layout, faults="", seed=0: (
        table.make_trials(make_config().changed({"seed": seed}), layout)
        .run(small.make_case(faults))
        .state
    )
    states = {run(*one) for one in drawn}
    self.assertLen(states, 1)
    self.assertNotIn(run(make_layout(1, 1), seed=1), states)
    # Another partition and fewer pipelines than before compile nothing, even
    # without what other processes have left on the disk.
    programs = program_store.use()
    before = programs.num_compiled
    with mock.patch.object(programs, "folder", None):
      for layout in (make_layout(2, 2, costs_seed=9), make_layout(1, 3, mode("lazy"))):
        run(layout)
    self.assertEqual(programs.num_compiled, before)

  def test_drawn(self):
    draw = lambda count, seed: [
        *layouts_lib.draw_layouts(make_config(), count, seed=seed, max_stages=4)
    ]
    drawn = draw(60, 0)
    self.assertEqual(drawn[30:], draw(30, 30))
    values = lambda name: {dict(l.settings)[f"pipeline.{name}"] for l in drawn}
    self.assertEqual(values("num_pipelines"), {1, 2, 3, 4, 6})
    self.assertEqual(values("num_stages"), {1, 2, 3, 4})
    self.assertEqual(values("num_shares"), {12})
    self.assertEqual({l.number for l in drawn}, {*range(60)})

  def test_a_batch_that_few_pipelines_can_share(self):
    config = make_config().changed({"pipeline.num_microbatches": 4})
    self.assertEqual(layouts_lib.list_pipelines(config), [1, 2, 4])
    self.assertEqual(layouts_lib.split_batch(config, 4)["pipeline.num_microbatches"], 2)
    self.assertEqual(layouts_lib.split_batch(config)["pipeline.num_shares"], 4)

  def test_a_storm_of_all_kinds(self):
    jax.devices()
    table.prepare(make_config())  # In this process, whose devices are known.
    spy = lambda owner, name: mock.patch.object(
        owner, name, autospec=True, side_effect=getattr(owner, name)
    )
    with spy(cases.Storm, "_add") as add, spy(writer.Writer, "close") as close:
      rows = [r for job in table.plan(make_config(), ("mixed",), count=3) for r in table.run(job)]
    # Each run, and the undisturbed one; or it may write into a folder that goes.
    self.assertEqual(close.call_count, 4)
    kinds = {call.args[-1] for call in add.call_args_list}
    self.assertEqual([row.failures for row in rows], [[]] * 3)
    self.assertLen({*rows[0].states, *rows[1].states, *rows[2].states}, 1)
    self.assertGreaterEqual(len(kinds), 3)


class ClustersTest(absltest.TestCase):

  def test_run(self):
    commands = []

    def call(command, *unused, **more):
      commands.append(command[2:])
      flag = next(c for c in command if c.startswith("--workdir="))
      workdir = pathlib.Path(flag.partition("=")[2])
      workdir.mkdir()
      state = "b" if "--seed=7" in command else "a"
      (workdir / "summary.json").write_text(json.dumps({"state_sha256": state}))

    options = dict(num_events=2, seed=7, arguments=("--config=c.py",))
    plan = lambda count: table.plan(make_config(), (table.PROCESSES,), count=count, **options)
    size = lambda l: l["pipeline.num_pipelines"] * l["pipeline.num_stages"]
    self.assertEqual({size(dict(job.layout.settings)) for job in plan(40)}, {1, 2, 3, 4, 6})
    with mock.patch.object(interleave, "call", call):
      (other,), (same,) = map(table.run, plan(2))
    self.assertEqual((other.states, same.states), ({}, {"a": 1}))
    ((faults, message),) = other.failures
    self.assertEqual(message, "RuntimeError: b is not a, the state of one process")
    self.assertEqual(
        table.find_command(other, faults),
        "bamboo verify --config=c.py --layouts=1 --seed=7 --processes --num_events=2",
    )
    modules = [c[0] for c in commands]
    self.assertEqual(modules, ["launch.train"] + ["launch.cluster"] * 2)
    same = r"--config=|--config.(num_steps|pipeline.num_shares)="
    given = [sorted(a for a in c if re.match(same, a)) for c in commands]
    self.assertEqual([given[0]] * 3, given)
    self.assertLen(given[0], 3)
    self.assertIn("--random_kills=2", commands[2])
