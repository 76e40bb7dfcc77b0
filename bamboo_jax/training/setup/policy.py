"""The policies of the simulator as settings of a run.

`sim.presets.PLANNERS` is the table of both. A run differs from the published
systems in two ways: lost stages are dealt by share to all nodes that hold them,
and `config.redundancy` decides about shadows.
"""

from typing import Any

from bamboo_jax import base, config as config_lib

_LAYOUTS = ("depth", "templates", "grid")
_RUNGS = ("reroute", "drop", "reconfigure", "checkpoint")
# Options of `config.recovery` that a policy has by the same name.
_SAME = ("fold", "hand_over", "num_failures", "method", "is_preemptible")


def set_options(config: config_lib.Config) -> config_lib.Config:
  """Returns `config` with the options of `config.recovery.policy`, if set.

  Imports `config.plugins` first. The options of replicas stay, if the policy
  uses replicas. Raises `ValueError` for a policy that is unknown, only for
  simulations, or lacks the replicas that it needs; or if a plugin cannot be
  imported.
  """
  name = config.recovery.policy
  if name is None and not config.plugins:
    return config
  # Imported late: it takes half a second, which other runs do not need.
  from bamboo_jax.sim import build, presets

  build.load_plugins({"plugins": config.plugins})
  if name is None:
    return config
  own = presets.OWN
  if base.is_function_name(name):
    own = {name: presets.find(name)}
  if name in own and own[name].layout not in _LAYOUTS:
    raise ValueError(
        f"config.recovery.policy={name!r} has layout={own[name].layout!r}, "
        f"which only simulations have; a run allows {', '.join(_LAYOUTS)}."
    )
  known = {**presets.PLANNERS, **own}
  known = {n: s for n, s in known.items() if s.layout in _LAYOUTS}
  if name not in known:
    raise ValueError(base.suggest(name, known, what="policy of runs"))
  settings = known[name]
  has_replicas = "shadow" in settings.rungs
  if has_replicas and (config.redundancy.mode == "none" or config.pipeline.num_stages == 1):
    raise ValueError(
        f"config.recovery.policy={name!r} needs replicas, got "
        f"config.redundancy.mode={config.redundancy.mode!r} and "
        f"config.pipeline.num_stages={config.pipeline.num_stages}. Set a mode "
        "such as 'bubble', and at least 2 stages."
    )
  changes: dict[str, Any] = {f"recovery.{rung}": rung in settings.rungs for rung in _RUNGS}
  changes |= {f"recovery.{name}": getattr(settings, name) for name in _SAME}
  if not has_replicas:
    changes["redundancy.mode"] = "none"
  return config.changed(
      {
          **changes,
          "pipeline.layout": settings.layout,
          "cost.market": "spot" if settings.is_preemptible else "on_demand",
      }
  )
