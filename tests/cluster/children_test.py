"""How processes ended, and what their logs say last."""

import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.cluster import children


class ChildrenTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, "ended with exit status 0"),
      (3, "ended with exit status 3"),
      (-9, "was killed by SIGKILL"),
      (-99, "was killed by signal 99"),
  )
  def test_describe_exit(self, code, words):
    self.assertEqual(children.describe_exit(code), words)

  def test_read_tail(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "log")
      self.assertEqual(
          children.read_tail(path, num_lines=2), "(No such file or directory)"
      )
      for lines, tail in (
          (["a"], "a"),
          (["a", "b", "c"], "b\nc"),
          (["x" * 9000, "b"], "x" * 8189 + "\nb"),  # Not more than 8 KiB.
      ):
        path.write_text("".join(f"{line}\n" for line in lines))
        self.assertEqual(children.read_tail(path, num_lines=2), tail)
