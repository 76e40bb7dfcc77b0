"""Messages on a memory limit that is too small, with possible remedies."""

from collections.abc import Sequence

from bamboo_jax.plan import cost_model
from bamboo_jax.plan.memory import deaths, model as model_lib, needs, upkeep as upkeep_lib

_HELP = "Use more stages, smaller microbatches or fewer of them in flight"


def explain_split(
    costs: Sequence[cost_model.LayerCost],
    bounds: Sequence[int],
    model: model_lib.MemoryModel,
    limit_bytes: int,
) -> str:
  """Returns the message that no split fits, with the most even as example."""
  num_stages = len(bounds) - 1
  duties = deaths.find_duties(num_stages, model.upkeep)
  sizes = [duty.need(model, bounds).total_bytes for duty in duties]
  need = max(sizes)
  duty = duties[sizes.index(need)]
  first, last = duty.owned[0], duty.owned[-1]
  names = costs[bounds[first]].name, costs[bounds[last + 1] - 1].name
  who = f"stage {first}"
  if model.upkeep.protection is not None or duty.stands_in:
    who = describe(duty)
  return (
      f"No split of {len(costs)} layers into {num_stages} stages fits in "
      f"{needs.format_size(limit_bytes)} per device: at best {who} "
      f"(layers {names[0]} to {names[1]}) " + explain_need(need, limit_bytes, model.upkeep)
  )


def explain_need(need_bytes: int, limit_bytes: int, upkeep: upkeep_lib.Upkeep) -> str:
  """Returns the end of a message: the need, the excess, and remedies."""
  size = needs.format_size
  return (
      f"needs {size(need_bytes)}, which is {size(need_bytes - limit_bytes)} "
      f"too much. {_HELP}{_advise(upkeep)}."
  )


def describe(duty: deaths.Duty) -> str:
  """Returns node, stages and replicas of a duty as text."""
  text = f"stage {duty.owned[0]}"
  if len(duty.owned) > 1:
    text = f"stages {', '.join(map(str, duty.owned))}"
  text = f"node {duty.node} with {text}"
  if duty.replicas:
    text += f" and replicas of {', '.join(map(str, duty.replicas))}"
  if duty.victim is not None:
    text += f" after the death of node {duty.victim}"
  if duty.stands_in:
    text += " that computes it for another pipeline too, after a death there,"
  return text


def _advise(upkeep: upkeep_lib.Upkeep) -> str:
  """Returns the settings that would need less."""
  protection = upkeep.protection
  if protection is None:
    return "; or config.recovery.reroute=False" if upkeep.num_rerouted else ""
  better = []
  if protection.slots == "device":
    better.append('slots="host"')
  if protection.refresh == "state":
    better.append('refresh="gradient"')
  if protection.runs_ahead:
    better.append('mode="lazy"')
  return "; or of config.redundancy " + ", ".join([*better, 'mode="none"'])
