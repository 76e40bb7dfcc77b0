"""Plans that once broke something; their names say what went wrong."""

import json
import pathlib

from absl.testing import parameterized

from tests import samples
from tests.explorer import history, plans

_CORPUS = sorted((pathlib.Path(__file__).parent / "corpus").glob("*.json"))


class CorpusTest(parameterized.TestCase):

  @parameterized.named_parameters((path.stem, path) for path in samples.draw(_CORPUS, 30))
  def test_plan(self, path):
    plan = plans.from_dict(json.loads(path.read_text()))
    self.assertEqual(history.explore(plan), [])
