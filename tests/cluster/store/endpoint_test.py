"""Whether a summary is of the run before, or of the one that a store serves."""

import os
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from bamboo_jax.cluster.store import endpoint as endpoint_lib


class FindFormerSummaryTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("none", None, 100.0, None),
      ("of_the_run_before", 50.0, 40.0, b"{}"),
      ("just_continued", 99.0, None, b"{}"),  # `bamboo cluster` removes its file.
      ("store_began_after_it", 98.0, 99.0, b"{}"),
      ("store_was_killed_in_its_wait", 95.0, 40.0, None),
      ("store_had_its_wait", 89.0, 40.0, b"{}"),
  )
  def test_table(self, summary_secs, endpoint_secs, want):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for name, secs in (("summary.json", summary_secs), ("endpoint.json", endpoint_secs)):
      if secs is not None:
        (folder / name).write_text("{}")
        os.utime(folder / name, (secs, secs))
    found = endpoint_lib.find_former_summary(folder, now_secs=100.0)
    self.assertEqual(found, want)


if __name__ == "__main__":
  absltest.main()
