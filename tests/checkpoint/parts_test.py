import itertools

from absl.testing import parameterized

from bamboo_jax.checkpoint import manifest, parts


def _plan(owners, begins):
  """Plans a save that one member would begin."""
  said = {m: parts.PartsReport("5-ab" if m == begins else "", False) for m in range(9)}
  return parts.plan_save(said, 8, view=3, owners=owners)


class PartsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("one_node", [(0,)], 0, {0: (0,)}),
      ("one_pipeline", [(2, 1, 0)], 0, {2: (0,), 1: (1,), 0: (2,)}),
      ("in_turn", [(0, 1, 2), (3, 4, 5)], 0, {0: (0,), 4: (1,), 2: (2,)}),
      ("others_idle", [(4, 1), (2, 3)], 1, {4: (0,), 3: (1,)}),
      ("two_stages", [(0, 0, 2), (3, 4, 4)], 0, {0: (0,), 4: (1,), 2: (2,)}),
      ("both_of_one", [(5, 1, 5), (3, 4, 6)], 1, {5: (0, 2), 4: (1,)}),
      ("all_in_one", [(0, 0), (0, 0)], 0, {0: (0, 1)}),
  )
  def test_plan(self, owners, writer, stages):
    name = manifest.CheckpointName(5, 3, 8, "ab")
    self.assertEqual(_plan(owners, writer), parts.Save(name, writer, stages))
    self.assertIsNone(_plan(owners, 9))

  def test_each_stage_is_written_once_by_an_owner(self):
    for num_pipelines, num_stages in itertools.product((1, 2, 3), (1, 2, 3)):
      size = num_pipelines * num_stages
      for members in itertools.product(range(3), repeat=size):
        owners = [members[p * num_stages : (p + 1) * num_stages] for p in range(num_pipelines)]
        save = _plan(owners, min(members))
        written = [s for stages in save.stages.values() for s in stages]
        self.assertCountEqual(written, range(num_stages))
        self.assertEqual(save.writer, min(members))
        self.assertEqual(save.is_alone, set(save.stages) == {min(members)})
        for member, stages in save.stages.items():
          for stage in stages:
            self.assertIn(member, [row[stage] for row in owners])
