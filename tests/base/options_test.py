import os

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base


def _make(
    *,
    width: int,
    rate: float = 0.1,
    kind: str | None = None,
    is_tied: bool = True,
    folder: str | os.PathLike[str] | None = None,
):
  raise AssertionError("is not called")


def _make_any(first, **others):
  raise AssertionError("is not called")


class OptionsTest(parameterized.TestCase):

  @parameterized.parameters(
      {"width": 3},
      {"width": np.int64(3), "rate": 1},
      {"width": 3, "kind": None, "is_tied": False},
      {"width": 3, "kind": "a", "folder": object()},  # For the function to see.
  )
  def test_good_options(self, **options):
    base.check_options(_make, options, what="thing 'x'")

  @parameterized.parameters(
      ({"width": 3, "rat": 2}, "option of thing 'X' 'rat'; did you mean 'rate'"),
      ({"rate": 0.5}, "The thing 'X' needs the option 'width'"),
      ({"width": "a"}, "Option 'width' of thing 'X' must be int, got 'a'"),
      ({"width": 2.5}, "'width' of thing 'X' must be int, got 2.5"),
      ({"width": True}, "must be int, got True"),
      ({"width": 3, "is_tied": 1}, "must be bool, got 1"),
      ({"width": 3, "kind": 4}, r"must be str \| None, got 4"),
  )
  def test_bad_options(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      base.check_options(_make, options, what="thing 'X'")

  def test_other_names_where_they_are_taken(self):
    base.check_options(_make_any, {"first": 1, "second": 2}, what="thing")
    with self.assertRaisesRegex(ValueError, "needs the option 'first'"):
      base.check_options(_make_any, {"second": 2}, what="thing")
