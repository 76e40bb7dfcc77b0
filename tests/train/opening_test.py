"""What is said at the start of a run."""

import dataclasses
import io
import pathlib
import tempfile
import types

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.checkpoint import identity as identity_lib
from bamboo_jax.metrics import jsonl, progress as progress_lib
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.train import environment
from bamboo_jax.train.record import outputs as outputs_lib, workdir as workdir_lib
from bamboo_jax.train.setup import accept, job as job_lib, sizes
from tests import tiny
from tests.train import outputs_test

_CHANGE = identity_lib.ChangedSetting("optimizer.learning_rate", 0.1, 0.2, True)
_CHANGED = (
    "changed=optimizer.learning_rate old=0.1 new=0.2; later steps can differ "
    "in bits from a run without the change."
)


class OpeningTest(parameterized.TestCase):

  def make_job(self, **changes):
    config = tiny.make_config(
        optimizer__schedule_options={"init_value": 0.0, "warmup_steps": 1}, **changes
    )
    config.optimizer.schedule_options.decay_steps = 3
    devices = devices_lib.place_nodes([0, 1])
    return job_lib.make_job(accept.accept(config), devices=devices)

  @parameterized.parameters(
      ({}, "4 samples a step: 2 copies x 2 microbatches x 1"),
      (
          {"num_pipelines": 1, "microbatch_size": 8},
          "16 samples a step: 1 copy x 2 microbatches x 8",
      ),
      ({"layout": "templates"}, "4 samples a step: 4 microbatches x 1"),
  )
  def test_batch_in_words(self, changes, want):
    small = {"num_pipelines": 2, "num_microbatches": 2, "microbatch_size": 1, **changes}
    config = config_lib.Config().changed({f"pipeline.{k}": v for k, v in small.items()})
    self.assertEqual(sizes.describe_batch(config), want)

  def test_warnings_and_changes_are_shown_and_written_once(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    root, shown = pathlib.Path(folder), io.StringIO()
    nodes = {}
    for number in (0, 1):
      state = outputs_test.State(nodes, number)
      state.writer = types.SimpleNamespace(changes=(_CHANGE,))
      nodes[number] = outputs_lib.Outputs(
          self.make_job(),
          environment.Environment(
              cohort=None,
              workdir=workdir_lib.Workdir(root),
              progress=None if number else progress_lib.ProgressLine(num_steps=5, stream=shown),
          ),
          state,
      )
    for node in nodes.values():
      node.begin(2)
    events = {line["event"]: line for line in jsonl.read_lines(root / "metrics.jsonl")}
    warning = (
        "the learning rate is 0 from step 4 of config.num_steps=5 on: these "
        "steps change no parameter."
    )
    self.assertEqual([*events], ["start", "warning", "changed"])
    self.assertEqual(events["warning"]["text"], warning)
    self.assertEqual(
        events["changed"],
        {"event": "changed", "step": 2, **dataclasses.asdict(_CHANGE), "text": _CHANGED},
    )
    self.assertEqual(
        shown.getvalue().splitlines()[2:], [f"warning: {warning}", "resumed_from_step=2", _CHANGED]
    )
