"""Maps tensors of `transformers` to our arrays.

A line of a table has the part of the model, our array, the name of the tensor
(`{}` is the block), and "T" if the tensor is [out, in]. An array may be several
tensors side by side. Lines of arrays that a model lacks, such as an untied head
or norms of queries and keys, are skipped.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np

from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.models import model as model_lib
from bamboo_jax.models.text import transformer

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]  # Ours: layer, array.

_BERT = """
embed wte bert.embeddings.word_embeddings.weight
embed wpe bert.embeddings.position_embeddings.weight
embed wse bert.embeddings.token_type_embeddings.weight
embed norm/scale bert.embeddings.LayerNorm.weight
embed norm/bias bert.embeddings.LayerNorm.bias
attention qkv/kernel {}attention.self.(query,key,value).weight T
attention qkv/bias {}attention.self.(query,key,value).bias
attention out/kernel {}attention.output.dense.weight T
attention out/bias {}attention.output.dense.bias
attention norm/scale {}attention.output.LayerNorm.weight
attention norm/bias {}attention.output.LayerNorm.bias
mlp up/kernel {}intermediate.dense.weight T
mlp up/bias {}intermediate.dense.bias
mlp down/kernel {}output.dense.weight T
mlp down/bias {}output.dense.bias
mlp norm/scale {}output.LayerNorm.weight
mlp norm/bias {}output.LayerNorm.bias
head wte bert.embeddings.word_embeddings.weight
head bias cls.predictions.bias
head transform/kernel cls.predictions.transform.dense.weight T
head transform/bias cls.predictions.transform.dense.bias
head norm/scale cls.predictions.transform.LayerNorm.weight
head norm/bias cls.predictions.transform.LayerNorm.bias
head pooler/kernel bert.pooler.dense.weight T
head pooler/bias bert.pooler.dense.bias
head pair/kernel cls.seq_relationship.weight T
head pair/bias cls.seq_relationship.bias
"""
_GPT2 = """
embed wte transformer.wte.weight
embed wpe transformer.wpe.weight
attention norm_scale {}ln_1.weight
attention norm_shift {}ln_1.bias
attention qkv_weight {}attn.c_attn.weight
attention qkv_bias {}attn.c_attn.bias
attention out_weight {}attn.c_proj.weight
attention out_bias {}attn.c_proj.bias
mlp norm_scale {}ln_2.weight
mlp norm_shift {}ln_2.bias
mlp up_weight {}mlp.c_fc.weight
mlp up_bias {}mlp.c_fc.bias
mlp down_weight {}mlp.c_proj.weight T
mlp down_bias {}mlp.c_proj.bias
head norm_scale transformer.ln_f.weight
head norm_shift transformer.ln_f.bias
head wte transformer.wte.weight
head weight lm_head.weight T
"""
_LLAMA = """
embed wte model.embed_tokens.weight
attention norm/scale {}input_layernorm.weight
attention q_proj/kernel {}self_attn.q_proj.weight T
attention k_proj/kernel {}self_attn.k_proj.weight T
attention v_proj/kernel {}self_attn.v_proj.weight T
attention o_proj/kernel {}self_attn.o_proj.weight T
attention q_norm/scale {}self_attn.q_norm.weight
attention k_norm/scale {}self_attn.k_norm.weight
mlp norm/scale {}post_attention_layernorm.weight
mlp gate_proj/kernel {}mlp.gate_proj.weight T
mlp up_proj/kernel {}mlp.up_proj.weight T
mlp down_proj/kernel {}mlp.down_proj.weight T
head norm/scale model.norm.weight
head wte model.embed_tokens.weight
head weight lm_head.weight T
"""
_GPT2_ADAPTERS, _LLAMA_ADAPTERS = (
    "".join(
        f"{part} lora_{x}_{name}/kernel " f"{{}}{where}.{name}.lora_{x.upper()}.weight T\n"
        for part, where in (("attention", attention), ("mlp", "mlp"))
        for name in products.names  # Those of the other part are not there.
        for x in "ab"
    )
    for attention, products in (("attn", transformer.GPT2), ("self_attn", transformer.LLAMA))
)
_TABLES = {  # Prefix of the names of a block.
    "bert": (_BERT, "bert.encoder.layer.{}."),
    "gpt2": (_GPT2 + _GPT2_ADAPTERS, "transformer.h.{}."),
    "llama": (_LLAMA + _LLAMA_ADAPTERS, "model.layers.{}."),
    "qwen": (_LLAMA + _LLAMA_ADAPTERS, "model.layers.{}."),
}
_BLOCK = re.compile(r"block_\d+\.?")


@dataclasses.dataclass(frozen=True)
class Rule:
  """The tensors that make up one of our arrays.

  Attributes:
    array: Name of the array in the layer, as in checkpoints.
    tensors: Names of the tensors; side by side along our last axis.
    transposed: Whether each of them is transposed.
    rows: Rows of the tensors, if our array has more; None if it does not.
  """

  layer: str
  array: str
  tensors: tuple[str, ...]
  transposed: bool
  rows: int | None = None

  def to_ours(self, tensors: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Returns our array of that shape, float32 and contiguous.

    Rows that the tensors do not have are zeros.
    """
    if self.rows is not None:
      more = shape[-1 if self.transposed else 0] - self.rows
      tensors = [np.pad(t, ((0, more), (0, 0))) for t in tensors]
    parts = [t.T for t in tensors] if self.transposed else tensors
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined, np.float32)

  def to_theirs(self, array: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tensors by name; the inverse of `to_ours`."""
    parts = np.split(array, len(self.tensors), axis=-1)
    parts = [p.T for p in parts] if self.transposed else parts
    contiguous = [np.ascontiguousarray(p[: self.rows]) for p in parts]
    return dict(zip(self.tensors, contiguous, strict=True))

  def their_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of each tensor if `shape` is ours."""
    *sizes, last = shape
    part = (*sizes, last // len(self.tensors))
    part = part[::-1] if self.transposed else part
    return part if self.rows is None else (self.rows, *part[1:])


def shapes_of(model: model_lib.Model) -> Shapes:
  """Returns the shapes of the arrays of a model by layer and name."""
  return {
      layer: {k: a.shape for k, a in layer_arrays.shapes_of(like).items()}
      for layer, like in model.variable_shapes().items()
  }


def rules_of(fingerprint: Mapping[str, Any], shapes: Shapes) -> tuple[Rule, ...]:
  """Returns the rules of a model, in the order of its layers."""
  table, prefix = _TABLES[fingerprint["name"]]
  num_tokens = None  # In arrays that have more rows.
  if fingerprint.get("vocab_multiple"):
    num_tokens = fingerprint["vocab_size"]
  rules = []
  for layer, arrays in shapes.items():
    part = _BLOCK.sub("", layer) or "block"
    numbers = map(int, re.findall(r"\d+", layer))
    start = prefix.format(*numbers) if part != layer else ""
    for row in filter(None, table.splitlines()):
      its_part, array, names, *transposed = row.split()
      if its_part == part and f"params/{array}" in arrays:
        before, _, rest = names.replace("{}", start).partition("(")
        inner, _, after = rest.partition(")")
        tensors = tuple(before + one + after for one in inner.split(","))
        rows = num_tokens if array in ("wte", "weight") else None
        rules.append(Rule(layer, f"params/{array}", tensors, bool(transposed), rows))
  return tuple(rules)
