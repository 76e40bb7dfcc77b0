"""Named policies, and the job and cluster that they are compared on.

`POLICIES` differ in how they recover and choose among the same layouts; the
layouts of `PLANNERS` are those of the systems that they are named after.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.sim import policies as policies_lib, transformer

Settings = policies_lib.Settings

# A model like GPT-2 medium, on a GPU and 10 Gbit/s for each node.
TRANSFORMER: dict[str, Any] = dict(
    num_blocks=24,
    width=1024,
    sequence_length=1024,
    vocab_size=50_257,
    flops_per_sec=4e13,
    link_bytes_per_sec=1.25e9,
)
JOB = dict(num_stages=8, num_microbatches=64, microbatch_size=8)

_ALL = ("shadow", "reroute", "reconfigure", "checkpoint")
_SHADOWS = ("shadow", "reconfigure", "checkpoint")
# As in those systems: other nodes compute for a stage but not for a pipeline, a
# pipeline of fewer nodes does not fit, and nodes stay until they are removed.
# Published memory limits cover stages only.
_SYSTEM = Settings(reroute="stage", fold=False, hand_over=False, charges_replicas=False)


def _make(*rungs: str, **changes: Any) -> Settings:
  return dataclasses.replace(_SYSTEM, rungs=rungs, **changes)


POLICIES: Mapping[str, Settings] = {
    "on_demand": _make("checkpoint", is_preemptible=False),
    "checkpoint": _make("checkpoint"),
    "sample_dropping": _make("drop", "checkpoint"),
    "bamboo": _make(*_SHADOWS),
    "reconfigure": _make("reconfigure", "checkpoint"),
    "recycle": _make("reroute", "checkpoint"),
    "full_with_shadows": _make(*_ALL),
    "full": _make(*_ALL, picks_mode=True),
}

_TEMPLATES = dict(layout="templates", use_all=False)
PLANNERS: Mapping[str, Settings] = {
    "on_demand": _make("checkpoint", layout="depth", is_preemptible=False),
    "checkpoint": _make("checkpoint", layout="depth", placement="order"),
    "varuna": _make("checkpoint", placement="order"),
    "sample_dropping": _make("drop", "checkpoint", layout="depth"),
    "bamboo": _make(*_SHADOWS, layout="depth", overprovision=1.5),
    "oobleck": _make("reconfigure", "checkpoint", layout="templates"),
    "recycle": _make("reroute", "checkpoint", layout="depth"),
    "parcae": _make("reconfigure", "checkpoint", layout="liveput"),
    "full_with_shadows": _make(*_ALL, **_TEMPLATES),
    "full": _make(*_ALL, picks_mode=True, **_TEMPLATES),
}

OWN: dict[str, Settings] = {}  # Added by `register`.


def register(name: str, settings: Settings) -> None:
  """Names a policy, for `find` and for comparisons."""
  OWN[name] = settings


def find(name: str) -> Settings:
  """Returns a policy of `OWN`, `POLICIES` or `PLANNERS`, in this order.

  The name "file.py:function" stands for the policy that the function returns.
  """
  if base.is_function_name(name):
    function = base.find_function(name, what="policy")
    base.check_options(function, {}, what=f"policy {name!r}")
    settings = function()
    if not isinstance(settings, Settings):
      raise ValueError(
          f"Policy {name!r} must return bamboo_jax.sim.Settings, got " f"{type(settings).__name__}."
      )
    return settings
  known = {**PLANNERS, **POLICIES, **OWN}
  if name not in known:
    raise ValueError(base.suggest(name, known, what="policy"))
  return known[name]


def make_workload() -> policies_lib.Workload:
  """Returns the job that policies are compared on."""
  costs = transformer.estimate_transformer(**TRANSFORMER, microbatch_size=JOB["microbatch_size"])
  return policies_lib.Workload(costs=costs, **JOB)
