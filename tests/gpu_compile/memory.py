"""Memory of each stage by the sizes of compiled programs, beside the planner's."""

from typing import NamedTuple

_PASSES = ("forward", "backward", "redundant")


class StageMemory(NamedTuple):
  """Peak of a stage, in bytes on each device; and the most temporary memory of a program."""

  planned: int
  compiled: int
  temp: int


def of_rows(stages, plan, by_kind):
  """Returns the memory of each stage of `plan`, on nodes with one device."""
  found = []
  for number, stage in enumerate(stages):
    planned = plan.memory[number]
    layers = plan.profile.layers[stage.first : stage.last]
    in_flight = planned.residual_bytes / sum(l.residual_bytes for l in layers)
    own = [by_kind[unit.kind] for unit in stage.units]
    run = list(own)
    if planned.replica_bytes:  # It may have to run passes of the next stage.
      run += [by_kind[unit.kind] for unit in stages[(number + 1) % len(stages)].units]
    temp = max(p.num_bytes("temp") for one in run for n, p in one.items() if n in _PASSES)
    state = sum(one["update"].num_bytes("argument") for one in own)
    sums = sum(one["zeros"].num_bytes("output") for one in own)
    copies = sum(one["cast"].num_bytes("output") for one in own if "cast" in one)
    kept = sum(one["forward"].num_bytes("output") for one in own)
    others = planned.replica_bytes + planned.buffer_bytes + planned.transfer_bytes
    others += planned.copy_bytes - sum(layer.copy_bytes for layer in layers)
    others += sum(layer.frozen_bytes for layer in layers)  # Not of an update.
    count = planned.accumulator_bytes / max(1, sum(layer.gradient_bytes for layer in layers))
    compiled = state + (count - 1) * sums + copies + in_flight * kept + temp + others
    found.append(StageMemory(planned.phases["compute"], int(compiled), temp))
  return found


def of_segments(plan, programs):
  """Returns the memory of each stage if passes run as segments (SPMD).

  During a segment, whose weights are copies, a node also holds its state and
  that of its replica.
  """
  most = max(program.device_bytes for program in programs)
  return [StageMemory(m.phases["compute"], m.resident_bytes + most, 0) for m in plan.memory]
