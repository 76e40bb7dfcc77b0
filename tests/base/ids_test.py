"""Tests that the type checker finds numbers that are mixed up."""

import contextlib
import os
import pathlib
import re

from absl.testing import absltest
from mypy import api

from bamboo_jax import base

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each line marked "wrong" passes one number for another.
_CODE = """
import dataclasses
from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.cluster import views
from bamboo_jax.schedule import failover, instruction
def check(
    step: base.StepId,
    view: base.ViewId,
    node: base.NodeId,
    stage: base.StageId,
    share: base.ShareId,
    roles: failover.Roles,
    seen: views.View,
) -> None:
  roles.stages_of(node)
  roles.stages_of(stage)  # wrong
  roles.stages_of(3)  # wrong
  failover.StageCopy(stage, node, node)
  failover.StageCopy(node, node, node)  # wrong
  roles.shadows[stage]
  roles.shadows[node]  # wrong
  instruction.Instruction(stage, instruction.Op.FORWARD, 0)
  instruction.Instruction(share, instruction.Op.FORWARD, 0)  # wrong
  types.Place(0, stage)
  types.Place(0, share)  # wrong
  dataclasses.replace(seen, number=view)
  dataclasses.replace(seen, number=step)  # wrong
  base.nodes(2).index(node)
  first: base.StageId = base.nodes(2)[0]  # wrong
  at: base.NodeId = base.NodeId(node + 1)
  at = node + 1  # wrong
"""


class IdsTest(absltest.TestCase):

  def test_type_checker_finds_numbers_that_are_mixed_up(self):  # Takes 3 s.
    with contextlib.chdir(_ROOT):
      found, problem, _ = api.run(
          [
              *("-c", _CODE, "--config-file=", f"--cache-dir={os.devnull}"),
              *("--strict", "--implicit-reexport", "--follow-imports=silent"),
              *("--no-site-packages", "--ignore-missing-imports"),
          ]
      )
    self.assertEqual(problem, "")
    lines = re.findall(r"^<string>:(\d+): error", found, re.M)
    wrong = [
        str(number) for number, line in enumerate(_CODE.splitlines(), 1) if line.endswith("wrong")
    ]
    self.assertEqual(list(dict.fromkeys(lines)), wrong, msg=found)

  def test_ranges(self):
    self.assertEqual([*base.nodes(2, 4)], [2, 3])
    self.assertEqual([*base.stages(2)], [0, 1])
    self.assertEqual([*base.by_node("ab")], [(0, "a"), (1, "b")])
    self.assertEqual([*base.by_stage("ab")], [(0, "a"), (1, "b")])
