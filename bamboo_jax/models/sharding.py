"""How parameters are cut over the devices of a node, by name.

A rule has an axis for each dimension of a parameter: over "data" it is cut so
that each device keeps a part (FSDP), over "tensor" so that each computes with
its part. The first product of a pair is cut by columns and the second by rows,
so one sum of activations follows each pair. What has no rule lies on all
devices; in a model without rules the last dimension of each matrix is cut over
"data" if that divides it.
"""

from collections.abc import Mapping, Sequence

Rule = tuple[str | None, ...]
AXES = ("data", "tensor")

_COLUMNS, _ROWS = ("data", "tensor"), ("tensor", "data")
_GPT2: Mapping[str, Rule] = {
    "wte": _ROWS,
    "wpe": (None, "data"),
    "qkv_weight": _COLUMNS,
    "qkv_bias": ("tensor",),
    "out_weight": _ROWS,
    "up_weight": _COLUMNS,
    "up_bias": ("tensor",),
    "down_weight": _COLUMNS,  # It stands transposed.
    "weight": _COLUMNS,
}
_LLAMA: Mapping[str, Rule] = {
    "wte": _ROWS,
    "weight": _COLUMNS,
    **{f"{n}_proj.kernel": _COLUMNS for n in ("q", "k", "v", "gate", "up")},
    **{f"{n}_proj.kernel": _ROWS for n in ("o", "down")},
}
RULES: Mapping[str, Mapping[str, Rule]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "qwen": _LLAMA,
}


def find_rule(
    model: str,
    names: Sequence[str],
    shape: Sequence[int],
    sizes: Mapping[str, int],
) -> Rule:
  """Returns the axes of an array that is like a parameter.

  Args:
    model: Name of the model.
    names: Of the parameter, the innermost last; others may stand before them.
    shape: Of the array; slots of optimizers may have other shapes.
    sizes: Number of devices by axis.

  Raises:
    ValueError: The devices of an axis do not divide a dimension.
  """
  if model not in RULES:
    cut = len(shape) > 1 and shape[-1] % sizes["data"] == 0
    return (*[None] * (len(shape) - 1), "data") if cut else ()
  rules, found = RULES[model], ()
  for count in (1, 2):
    found = rules.get(".".join(names[-count:]), found)
  if len(found) != len(shape):
    return ()
  for length, axis in zip(shape, found, strict=True):
    if axis is not None and length % sizes[axis]:
      raise ValueError(
          f"config.node.mesh.{axis}={sizes[axis]} does not divide "
          f"{'.'.join(names)} of {model!r}, which has shape {tuple(shape)}."
      )
  return found
