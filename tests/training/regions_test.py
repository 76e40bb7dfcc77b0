"""Runs whose nodes are in two regions have the bits of runs in one."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax.metrics import jsonl
from bamboo_jax.training import cohort as cohort_lib
from tests import folders, samples
from tests.verify import small

_LINK = dict(plan__region_latency_ms=50.0, plan__region_mbits=200.0)
_CASES = (
    ("death_and_join", (2, 2, 2), {}, "1,0/1,3 2,,,join 4,1/0,reduce"),
    ("finer_shares", (2, 4, 2), dict(num_shares=4), "1,0/1,3 2,,,join"),
    ("templates", (2, 2, 2), dict(pipeline__layout="templates", num_shares=4), "1,0/1,5 2,,,join"),
    ("new_pipelines", (2, 2, 2), dict(mode="none", recovery__reroute=False), "1,0/1,4 2,,,join"),
)


def zones_of(view):
  """Returns zones in which each region has every other node."""
  return {m.number: f"{('us/a', 'eu/a')[m.number % 2]}|{m.host}" for m in view.members}


class RegionsTest(folders.FolderCase, parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(cohort_lib, "zones_of", zones_of))

  @parameterized.named_parameters(*samples.draw(_CASES, 1))
  def test_bits_are_the_same(self, size, changes, text):
    outcome = small.make_trials(*size, **changes, **_LINK).run(small.make_case(text))
    self.assertNotEmpty(outcome.rungs)

  @parameterized.named_parameters(
      (
          "known",
          _LINK,
          "changed",
          r"^between regions: 0\.\d MiB a step, .* predicted step \d+ ms, ",
      ),
      ("unknown", {}, "warning", "regions 'eu', 'us', .* set config.plan.region_latency_ms and"),
  )
  def test_pipelines_move_into_regions_and_what_is_told(self, changes, kind, message):
    # Each pipeline is cut at first, which takes longer with many microbatches.
    trials = small.make_trials(2, 6, 2, num_steps=3, **changes)
    worker = trials.begin((), workdir_path=self.folder)
    worker.run(stop_at=2)
    regions = [{n % 2 for n in p.nodes} for p in worker.state.layout.pipelines]
    self.assertEqual([len(names) for names in regions], [1, 1] if changes else [2, 2])
    self.assertEqual(worker._rules.plan.costs.regions.are_several((0, 1)), bool(changes))
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    told = [e["text"] for e in lines if e.get("event") == kind and "regions" in e["text"]]
    self.assertLen(told, 1)
    self.assertRegex(told[0], message)
