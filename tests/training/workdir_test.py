"""Which paths a workdir may have."""

import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.training.record import workdir as workdir_lib


class WorkdirTest(absltest.TestCase):

  def test_paths(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for path in (root, root / "new"):
      found = workdir_lib.Workdir.at(str(path))
      self.assertEqual(found.metrics, path / "metrics.jsonl")
    (root / "file").touch()
    for path in ("", str(root / "file")):
      with self.assertRaisesRegex(ValueError, f"workdir='{path}' is not a dir"):
        workdir_lib.Workdir.at(path)


if __name__ == "__main__":
  absltest.main()
