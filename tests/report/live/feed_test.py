"""What a page reads: a run is told though a file of it is damaged or elsewhere."""

import dataclasses
from unittest import mock

from bamboo_jax.configs import default
from bamboo_jax.report.live import feed as feed_lib
from tests import folders
from tests.report.live import facts_test

_COST = {"instance": "small", "prices": "/elsewhere/prices.csv"}


class FeedTest(folders.FolderCase):

  def read(self, *, has_records=True, **config):
    run = dataclasses.replace(facts_test.run(*facts_test.nodes(2), roles=()), config=config)
    with mock.patch.object(feed_lib, "read_run", lambda records: run):
      return feed_lib.Feed(self.folder, mock.Mock() if has_records else None).read()

  def test_a_damaged_log(self):
    (self.folder / "metrics.jsonl").write_text('{"step": 1}\nnothing\n{"step": 2}\n')
    with self.assertLogs(level="WARNING") as logs:
      self.assertEqual(self.read()["head"]["step"], 5)  # Of the records.
    self.assertRegex(logs.output[0], "Line 2 of .* is not .*Only the records are shown")
    with self.assertRaisesRegex(ValueError, "Line 2 of"):
      self.read(has_records=False)

  def test_prices_on_another_machine(self):
    config = default.get_config().to_dict() | {"cost": _COST}
    self.assertEqual(self.read(**config)["head"]["step"], 5)
