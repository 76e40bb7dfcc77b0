"""Rematerialisation: which values are kept, and which are recomputed.

Either a policy for whole units, such as "inputs", or one for each kind of
layer, such as "attention=inputs,mlp=dots"; other kinds keep all. The kind of a
layer is its name without its block: `block_00.mlp` is an `mlp`.
"""

from collections.abc import Callable, Iterable, Mapping
import functools
from typing import Any

import jax

from bamboo_jax import base

# The values that the forward pass keeps; all others are recomputed.
POLICIES: Mapping[str, Callable[..., Any] | None] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "inputs": jax.checkpoint_policies.nothing_saveable,
}


def of_units(remat: str) -> str:
  """Returns the policy for whole units; "full" if it differs by layer."""
  return "full" if "=" in remat else remat


def of_layers(remat: str, names: Iterable[str]) -> dict[str, str]:
  """Returns the policy of each layer within its unit.

  Raises:
    ValueError: The policy or the kind of layer does not exist.
  """
  kinds = {name: name.rpartition(".")[2] for name in names}
  chosen = {}
  for part in remat.split(",") if "=" in remat else ():
    kind, _, policy = (text.strip() for text in part.partition("="))
    if kind not in kinds.values():
      allowed = sorted({*kinds.values()})
      raise ValueError(base.suggest(kind, allowed, what="layer of remat"))
    chosen[kind] = policy
  for policy in chosen.values() if chosen else (remat,):
    if policy not in POLICIES:
      raise ValueError(base.suggest(policy, POLICIES, what="remat policy"))
  return {name: chosen.get(kind, "full") for name, kind in kinds.items()}


def checkpoint(run: Callable[..., base.PyTree], policy: str) -> Callable[..., base.PyTree]:
  if POLICIES[policy] is None:
    return run
  return jax.checkpoint(run, policy=POLICIES[policy])


def checkpoint_keyed(
    run: Callable[..., base.PyTree], policy: str, key: jax.Array | None
) -> Callable[..., base.PyTree]:
  """Returns `run(key, ...)` with its key passed as raw data.

  Recomputation keeps the key for the backward pass, and only plain arrays can
  be outputs of a program.
  """
  if key is None or POLICIES[policy] is None:
    return checkpoint(functools.partial(run, key), policy)
  impl = jax.random.key_impl(key)
  wrap = functools.partial(jax.random.wrap_key_data, impl=impl)
  inner = checkpoint(lambda bits, *args: run(wrap(bits), *args), policy)
  return functools.partial(inner, jax.random.key_data(key))
