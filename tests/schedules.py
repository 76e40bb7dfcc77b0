"""Schedules that tests write down: instructions as text, equal stages."""

import re

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib

_PATTERN = re.compile(r"(\d+)(F|B|RF|SA|RA|SG|RG)(\d+)(?:[<>](\d+))?")


def parse(text):
  """Returns the instruction that prints as `text`."""
  stage, op, microbatch, peer = _PATTERN.fullmatch(text).groups()
  parsed = instruction_lib.Instruction(
      int(stage), instruction_lib.Op(op), int(microbatch), peer and int(peer)
  )
  assert str(parsed) == text, text
  return parsed


def uniform_costs(
    num_stages, *, forward_ms=1.0, backward_ms=2.0, transfer_ms=0.0
):
  """Returns the costs of equal stages without memory."""
  return costs_lib.StageCosts(
      forward_ms=(forward_ms,) * num_stages,
      backward_ms=(backward_ms,) * num_stages,
      transfer_ms=(transfer_ms,) * (num_stages - 1),
  )
