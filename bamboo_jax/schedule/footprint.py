"""Peak device memory of a row.

A node runs one instruction after the other, so its memory follows from its row
alone, regardless of durations. An array is on the device from the instruction
that makes or receives it to its last use in the row. Copies kept in host memory
until the commit do not count: sent arrays, and the results of redundant forward
passes, whose input and output are on the device only while they run.
"""

from collections.abc import Collection

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
)

Op = instruction_lib.Op

# What instructions read and leave on the device: the kind of the array ("A"
# activation, "G" gradient, "R" residuals), and what to add to the stage of the
# instruction to get that of the array.
_USES = {
    Op.FORWARD: (("A", -1),),
    Op.BACKWARD: (("G", 0), ("R", 0)),
    Op.SEND_ACTIVATION: (("A", 0),),
    Op.SEND_GRAD: (("G", 0),),
}
_MAKES = {
    Op.FORWARD: (("A", 0), ("R", 0)),
    Op.REDUNDANT_FORWARD: (("A", 0),),
    Op.BACKWARD: (("G", -1),),
    Op.RECV_ACTIVATION: (("A", 0),),
    Op.RECV_GRAD: (("G", 0),),
}


def peak_bytes(
    row: instruction_lib.Row,
    *,
    owned: Collection[base.StageId],
    costs: costs_lib.StageCosts,
    holdings: holdings_lib.Holdings,
) -> int:
  """Returns the largest number of bytes on the device of a node.

  Counts the resident bytes of `owned` stages, residuals, and activations and
  gradients until they are used or sent; inputs and results of a pass coexist.
  Arrays of `holdings` count from the start if a pass reads them, and only
  during the transfer if they are sent again.
  """
  sizes = {"A": costs.activation_bytes, "G": costs.activation_bytes, "R": costs.residual_bytes}
  held = {"A": holdings.activations, "G": holdings.gradients, "R": holdings.residuals}
  made = {
      (kind, i.stage + shift, i.microbatch) for i in row for kind, shift in _MAKES.get(i.op, ())
  }
  live: set[tuple[str, int, int]] = set()
  now = peak = 0
  # Backwards, so that the last use of an array is seen before all others.
  for i in reversed(row):
    during = now
    for kind, shift in _MAKES.get(i.op, ()):
      stage = i.stage + shift
      key = (kind, stage, i.microbatch)
      if key in live:
        live.remove(key)
        now -= sizes[kind][stage]
      elif stage >= 0:
        during += sizes[kind][stage]
    for kind, shift in _USES.get(i.op, ()):
      stage = i.stage + shift
      key = (kind, stage, i.microbatch)
      if key in live:
        continue
      is_held = key not in made and key[1:] in held[kind]
      if key in made or is_held:
        during += sizes[kind][stage]
        if not (is_held and i.is_transfer):
          live.add(key)
          now += sizes[kind][stage]
    peak = max(peak, during)
  resident = sum(costs.resident_bytes[stage] for stage in owned)
  return resident + peak
