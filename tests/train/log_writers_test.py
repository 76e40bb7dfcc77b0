"""A logger that fails is named once, also at the end."""

import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.configs import default
from bamboo_jax.metrics import jsonl
from bamboo_jax.train import failures
from bamboo_jax.train.record import log_writers, workdir as workdir_lib


class LogWritersTest(absltest.TestCase):

  def test_a_failure_in_the_last_step_is_told(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "metrics.csv").mkdir()  # So it cannot be written.
    config, warnings = default.get_config(), []
    config.metrics.logger = "csv"
    writers = log_writers.LogWriters(
        workdir_lib.Workdir(folder),
        config,
        resumed_from_step=0,
        callbacks=(),
        on_error=self.fail,
        warn=warnings.append,
        failures=failures.Failures(),
    )
    writers.write_event("start", step=0, values={})
    writers.finish()
    writers.close()
    (text,) = warnings
    self.assertStartsWith(text, "No more lines for logger csv: [Errno 21] Is a")
    self.assertEndsWith(text, "/metrics.csv'. Training continues.")
    (line,) = jsonl.read_lines(folder / "metrics.jsonl")
    self.assertEqual(line["event"], "start")


if __name__ == "__main__":
  absltest.main()
