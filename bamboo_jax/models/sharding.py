"""How parameters are sharded over the devices of a node, by name.

A rule names an axis for each dimension of a parameter: over "data" it is
sharded for storage (FSDP), over "tensor" for computation. The first product of
a pair is sharded by columns and the second by rows, so one all-reduce of
activations follows each pair. Parameters without a rule are replicated; in a
model without rules the last dimension of each matrix is sharded over "data" if
divisible.
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
    "down_weight": _COLUMNS,  # Stored transposed.
    "weight": _COLUMNS,
}
_LLAMA: Mapping[str, Rule] = {
    "wte": _ROWS,
    "weight": _COLUMNS,
    **{f"{n}_proj.kernel": _COLUMNS for n in ("q", "k", "v", "gate", "up")},
    **{f"{n}_proj.kernel": _ROWS for n in ("o", "down")},
}
RULES: Mapping[str, Mapping[str, Rule]] = {"gpt2": _GPT2, "llama": _LLAMA, "qwen": _LLAMA}


def find_rule(
    model: str, names: Sequence[str], shape: Sequence[int], sizes: Mapping[str, int]
) -> Rule:
  """Returns the axes of an array that corresponds to a parameter.

  Args:
    names: Path of the parameter, innermost name last; may have a prefix.
    shape: Shape of the array; slots of optimizers may have other shapes.
    sizes: Number of devices by axis.

  Raises:
    ValueError: A dimension is not divisible by the devices of its axis.
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
