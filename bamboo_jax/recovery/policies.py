"""Policies by name: changes of a run's config.

A policy of a published system is a choice of rungs and of pipelines. `bamboo simulate
--policies=bamboo,oobleck` plays them, `config.recovery.policy` trains with one. What is
below "study." only simulations obey.
"""

from collections.abc import Mapping, Sequence
import importlib
from typing import Any

from bamboo_jax import base, config as config_lib

Changes = Mapping[str, Any]
OWN = "own"  # The config as it is.

# As in those systems: other nodes compute for a stage but not for a pipeline, a pipeline
# of fewer nodes does not fit, nodes stay until they are removed, and sums are NCCL's.
# Published memory limits cover stages only.
_SYSTEM = {
    "redundancy.mode": "none",
    "recovery.reroute": False,
    "recovery.drop": False,
    "recovery.reconfigure": False,
    "recovery.checkpoint": True,
    "recovery.fold": False,
    "recovery.hand_over": False,
    "recovery.method": "replanning",
    "recovery.is_preemptible": True,
    "cost.market": "spot",
    "pipeline.layout": "depth",
    "study.reroute": "stage",
    "study.charges_replicas": False,
    "study.reduction": "ring",
    "study.overlap": "drain",
    "study.duplex": "full",
    # The defaults, as a policy before it may have others.
    "study.layout": None,
    "study.overprovision": 1.0,
    "study.spread": True,
    "study.picks_mode": False,
    "study.uses_all": True,
}
_SHADOWS = {"redundancy.mode": "bubble", "recovery.reconfigure": True}
_ALL = {
    **_SHADOWS,
    "recovery.reroute": True,
    "pipeline.layout": "templates",
    "study.uses_all": False,
}
_SYSTEMS: Mapping[str, Changes] = {
    "on_demand": {"recovery.is_preemptible": False, "cost.market": "on_demand"},
    "checkpoint": {"study.spread": False},
    "varuna": {"pipeline.layout": "grid", "study.spread": False},
    "sample_dropping": {"recovery.drop": True},
    "bamboo": {**_SHADOWS, "study.overprovision": 1.5},
    "oobleck": {"recovery.reconfigure": True, "pipeline.layout": "templates"},
    "recycle": {"recovery.reroute": True},
    "parcae": {"recovery.reconfigure": True, "study.layout": "liveput"},
    "full_with_shadows": _ALL,
    "full": {**_ALL, "study.picks_mode": True},
}
POLICIES: dict[str, Changes] = {
    **{name: {**_SYSTEM, **changes} for name, changes in _SYSTEMS.items()},
    # After another, as in "bamboo+grid": all with the same choice of pipelines.
    "grid": {
        "pipeline.layout": "grid",
        "study.layout": None,
        "study.overprovision": 1.0,
        "study.spread": True,
    },
    OWN: {},
}


def register(name: str, changes: Changes) -> None:
  """Names a policy of one's own."""
  POLICIES[name] = changes


def load_plugins(names: Sequence[str]) -> None:
  """Imports the modules of `config.plugins`, which register policies or layouts."""
  for name in names:
    try:
      importlib.import_module(name)
    except ModuleNotFoundError as error:
      raise ValueError(
          f"config.plugins: {error}; a plugin must be in the working directory or on PYTHONPATH."
      ) from error
    except Exception as error:  # Any error of its code.
      raise ValueError(
          f"config.plugins: {name!r} cannot be imported: {type(error).__name__}: {error}"
      ) from error


def find(name: str) -> Changes:
  """Returns the changes of a policy; of several, as "bamboo+grid", later ones win.

  The name "file.py:function" stands for the changes that the function returns.
  """
  if base.is_function_name(name):
    function = base.find_function(name, what="policy")
    base.check_options(function, {}, what=f"policy {name!r}")
    found = function()
    if not isinstance(found, Mapping):
      raise ValueError(f"Policy {name!r} must return a dict of options, got {found!r:.80}.")
    return found
  changes: dict[str, Any] = {}
  for part in name.split("+"):
    if part not in POLICIES:
      raise ValueError(base.suggest(part, POLICIES, what="policy"))
    changes |= POLICIES[part]
  return changes


def apply(config: config_lib.Config, changes: Changes) -> config_lib.Config:
  """Returns `config` with a policy; if both have replicas, the config says how.

  Raises `ValueError` for changes that do not fit.
  """
  if changes.get("redundancy.mode", "none") != "none" and config.redundancy.has_replicas:
    changes = {key: value for key, value in changes.items() if key != "redundancy.mode"}
  return config.changed(changes)
