"""What is said if a run goes on with other settings than a checkpoint's."""

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import identity as identity_lib

ChangedSetting = identity_lib.ChangedSetting


def _make(**fields):
  return identity_lib.RunIdentity(
      **dict(seed=0, batch_size=4, model={"width": 8}, data={}) | fields
  )


def _compare(there, here):
  return here.check(there.describe(3), step=3, where="here")


class IdentityTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("same", {"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}),
      ("rounding", {"a": 1, "c": 2}, {"a": 2, "c": 2}, {}, {}, ("a", 1, 2, True)),
      (
          *(
              "meant",
              {},
              {},
              {"model.rate": 1.0, "num_steps": 2},
              {"model.rate": 2.0, "num_steps": 3},
          ),
          *(("model.rate", 1.0, 2.0, True), ("num_steps", 2, 3, False)),
      ),
      (
          *("absent", {}, {}, {"model.rate": 1.0}, {"model.decay": 2.0}),
          *(("model.decay", None, 2.0, True), ("model.rate", 1.0, None, True)),
      ),
      (  # What has resolved the option says it, and says it once.
          "resolved",
          {"shares": 2},
          {"shares": 2},
          {"shares": None},
          {"shares": 2},
      ),
      ("new_key", {"a": 1}, {"a": 1, "threads": 2}, {}, {}, ("threads", "unknown", None, True)),
      (  # Of a group, those that both have.
          "edited_code",
          {"code": {"a.py": "1f", "b.py": "2f", "d.py": "5f"}},
          {"code": {"a.py": "1f", "b.py": "3f", "c.py": "4f"}},
          {},
          {},
          ("code.b.py", "2f", "3f", True),
      ),
      ("no_code", {}, {"code": {}}, {}, {}),
      ("not_recorded", {}, {"code": {"a.py": "1f"}}, {}, {}, ("code", "unknown", None, True)),
  )
  def test_changes(self, rounding, now, config, config_now, *want):
    there = _make(rounding=rounding, config=config)
    here = _make(rounding=now, config=config_now)
    self.assertEqual(_compare(there, here), tuple(ChangedSetting(*one) for one in want))

  def test_checkpoint_of_an_older_version(self):
    here = _make(rounding={"a": 1, "c": 2}, config={"b": 1})
    meta = here.describe(3)
    del meta["config"], meta["rounding"]["c"]
    (change,) = here.check(meta, step=3, where="here")
    self.assertEqual(
        change.render(),
        "changed=unknown: the checkpoint does not record config, c; if they "
        "differ, later steps can differ in bits.",
    )
    del meta["rounding"]
    (change,) = here.check(meta, step=3, where="here")
    self.assertEqual(change.key, "config, a, c")

  def test_lines(self):
    line = "changed=checkpoint.keep old=2 new=None"
    self.assertEqual(ChangedSetting("checkpoint.keep", 2, None, False).render(), line)
    self.assertEqual(
        ChangedSetting("threads", 2, 3, True).render(),
        "changed=threads old=2 new=3; later steps can differ in bits from a "
        "run without the change.",
    )

  def test_options_of_another_run_are_named(self):
    options = {"seed": 0, "model.options.heads": 4, "num_steps": 5}
    there = _make(config=options, model={"heads": 4})
    changed = {**options, "model.options.heads": 2, "num_steps": 9}
    here = _make(config=changed, model={"heads": 2})
    with self.assertRaisesRegex(
        base.CheckpointError, r"another run: config.model.options.heads is 4 there, 2 here\. Choose"
    ):
      _compare(there, here)

  @parameterized.parameters(
      dict(seed=7), dict(batch_size=7), dict(model={"n": 1}), dict(data={"n": 1})
  )
  def test_another_run_is_refused(self, **changes):
    with self.assertRaisesRegex(base.CheckpointError, "another run: it has"):
      _compare(_make(**changes), _make())

  @parameterized.parameters([(1, 2)], [np.int32(1)])
  def test_is_plain(self, value):
    with self.assertRaisesRegex(ValueError, "model must be plain JSON values"):
      _make(model={"n": value})
