"""Oobleck's evaluation: the published table, and its rules one by one."""

import csv

from absl.testing import parameterized

from bamboo_jax.reproductions.oobleck import artifact, evaluation
from bamboo_jax.traces import trace as trace_lib
from tests import folders

_MODELS, _TRACES = artifact.read_models(), artifact.read_traces()
with (folders.ROOT / "reproductions/oobleck/digits.csv").open() as _file:
  _DIGITS = {(row["trace"], row["model"], row["system"]): row for row in csv.DictReader(_file)}


def _simulate(trace, model, system, **options):
  is_ec2 = trace == "ec2"
  has_rollback = not (is_ec2 and model in artifact.NO_ROLLBACK)
  return artifact.simulate(
      _MODELS[model], system, _TRACES[trace], **{"has_rollback": has_rollback} | options
  )


def _make_trace(*events, last_ms):
  """Twelve nodes from the start, and events; nothing happens at the end."""
  start = [trace_lib.Event(0, "add", f"n{i}") for i in range(12)]
  end = trace_lib.Event(last_ms, "add", "end")
  events = [trace_lib.Event(*event) for event in events]
  return trace_lib.Trace("made", (*start, *events, end), duration_ms=last_ms)


class PublishedTableTest(parameterized.TestCase):

  @parameterized.parameters(*_TRACES)
  def test_trace(self, trace):
    published = artifact.read_published()
    rows = [row for row in published if row["trace"] == trace]
    self.assertLen(rows, 15)
    for row in rows:
      model, system = row["model"], row["system"]
      got = _simulate(trace, model, system)
      if got is None:
        self.assertEqual(row["avg_samples_per_s"], "OOM")
        continue
      published = float(row["avg_samples_per_s"])
      with self.subTest(row):
        self.assertAlmostEqual(got.throughput, published, delta=max(0.02 * published, 0.005))
        # Both columns of ours, to the last digit.
        digits = _DIGITS[trace, model, system]
        ours_rate = evaluation.simulate(_MODELS[model], system, _TRACES[trace])
        self.assertEqual(
            (digits["published"], digits["artifact"], digits["ours"]),
            (f"{published:.2f}", f"{got.throughput:.2f}", f"{ours_rate:.2f}"),
        )
        self.assertEqual(got.preemptions, int(row["preemptions"]))
        self.assertAlmostEqual(got.average_nodes, float(row["avg_instances"]), delta=0.1)
        for name, share in got.shares.items():
          self.assertAlmostEqual(share, float(row[f"frac_{name}"]), delta=0.01)


class RulesTest(parameterized.TestCase):
  """A model with steps of 1 s, whatever the number of nodes."""

  def setUp(self):
    super().setUp()
    by_nodes = dict.fromkeys(range(15, 31), 10.0)
    self.model = artifact.Model(
        name="made",
        samples_per_step=10,
        throughput={"oobleck": by_nodes, "varuna": by_nodes},
        idle_gpus={},
        reconfigure_ms=3_000,
        restart_ms=8_000,
        restart_ms_by_nodes=None,
        checkpoint_ms=2_000,
        local_ms=4_000,
    )

  def test_oobleck_trains_on_while_nodes_gather(self):
    # From 48 s on; steps end at 49 ... 63 s, the one at 63.5 s is void, as 11
    # nodes are too few.
    trace = _make_trace((60_500, "remove", "n3"), last_ms=100_000)
    got = artifact.simulate(self.model, "oobleck", trace)
    self.assertEqual(got.num_steps, 15)
    self.assertAlmostEqual(got.throughput, 10.0)

  def test_our_simulator_stands_still_while_nodes_reconfigure(self):
    events = [trace_lib.Event(0, "add", f"n{i}") for i in range(24)]
    events.append(trace_lib.Event(60_500, "remove", "n3"))
    trace = trace_lib.Trace("made", tuple(events), duration_ms=100_000)
    # Steps of 1 s end at 49 ... 60 s, and at 64.5 ... 99.5 s.
    got = evaluation.simulate(self.model, "oobleck", trace)
    self.assertAlmostEqual(got, 10 * (12 + 36) / (100 - 48))

  @parameterized.named_parameters(
      # From 51 s on; a checkpoint after 61 s; steps end at 64, 65, 66 s.
      ("pays_for_checkpoints", None, 66_500, True, 13, 66),
      # A loss at 66.5 s: what came after the checkpoint at 63 s is lost. Steps
      # then end at 67 s, with a checkpoint, at 70, 71, 72 s; void at 72.5 s.
      ("rolls_back", 66_500, 100_000, True, 10 + 4, 72),
      ("keeps_all", 66_500, 100_000, False, 13 + 4, 72),
      # The checkpoint is made from 61 to 63 s, but stays open until 65 s. If it
      # fails there is none, so the loss costs everything.
      ("loss_in_checkpoint", 62_500, 62_501, True, 0, 61),
      ("checkpoint_too_long_open", 64_500, 64_501, True, 0, 64),
      ("loss_after_checkpoint", 65_500, 65_501, True, 10, 65),
  )
  def test_varuna(self, loss_ms, end_ms, has_rollback, kept, last_secs):
    losses = [(loss_ms, "remove", "n3")] if loss_ms else []
    trace = _make_trace(*losses, last_ms=end_ms)
    got = artifact.simulate(self.model, "varuna", trace, has_rollback=has_rollback)
    self.assertAlmostEqual(got.throughput, 10 * kept / (last_secs - 51))

  @parameterized.parameters(
      (2, "A pipeline takes 12 nodes, but made has at most 2"),
      (12, "nothing happens from the last event of made on, at 0 ms"),
  )
  def test_refuses_trace(self, num_nodes, message):
    events = [trace_lib.Event(0, "add", f"n{i}") for i in range(num_nodes)]
    trace = trace_lib.Trace("made", tuple(events), duration_ms=9**7)
    with self.assertRaisesRegex(ValueError, message):
      artifact.simulate(self.model, "oobleck", trace)
