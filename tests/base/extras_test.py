import sys
from unittest import mock

from bamboo_jax import base
from bamboo_jax.base import extras
from tests import folders


class ExtrasTest(folders.FolderCase):

  def test_missing_module(self):
    with self.assertRaises(base.MissingExtraError) as caught:
      extras.load("no_such_module.part", extra="plots", what="Figures")
    self.assertEqual(
        str(caught.exception),
        "Figures: No module named 'no_such_module'. Install the extra: pip "
        "install 'bamboo_jax[plots]'.",
    )

  def test_a_folder_of_that_name_is_no_package(self):
    folder = self.folder / "wanted_package"
    folder.mkdir()
    self.enterContext(mock.patch.object(sys, "path", [str(self.folder)]))
    with self.assertRaisesRegex(
        base.MissingExtraError,
        f"^A test: {folder} is a folder, not the package 'wanted_package'. Install the extra: ",
    ):
      extras.load("wanted_package", extra="none", what="A test")
    del sys.modules["wanted_package"]
