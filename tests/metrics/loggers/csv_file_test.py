import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.metrics.loggers import csv_file


class CsvFileTest(absltest.TestCase):

  def test_a_resumed_run_replaces_later_rows(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    first = csv_file.CsvFile(folder, 0)
    first.log(1, {"loss": 2.0, "rung": "shadow", "ms": {"vote": 0.5}})
    first.log(2, {"loss": 1.5})
    first.event("eval", 2, {"loss": 9.0})
    first.close()
    again = csv_file.CsvFile(folder, 1)
    again.log(2, {"loss": 1.25, "ms": {"vote": 1.0}, "new": 3.0})
    again.close()
    self.assertEqual(
        (folder / "metrics.csv").read_text(), "step,loss,ms/vote\n1,2.0,0.5\n2,1.25,1.0\n"
    )


if __name__ == "__main__":
  absltest.main()
