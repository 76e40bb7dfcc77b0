"""What `transformers` calls our models: its architectures, the entries of config.json, tensors.

A line of a table of tensors has the part of the model, our array, the name of the tensor
(`{}` is the block), and "T" if the tensor is [out, in]. An array may be several
tensors side by side. Lines of arrays that a model lacks, such as an untied head
or norms of queries and keys, are skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.models import model as model_lib
from bamboo_jax.models.text import transformer

_BLOCK = re.compile(r"block_\d+\.?")
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


@dataclasses.dataclass(frozen=True)
class Family:
  """The models of one architecture.

  Attributes:
    architecture: Class of `transformers`.
    prefix: Prefix of tensor names, which some files omit.
    ignored: Regular expression for tensors that carry no information.
    copies: Tensors that repeat others, if parameters are tied.
    options: Names of our options, each with its key in config.json.
    fixed: Entries of config.json with the only value that our models support.
    table: The tensors of our arrays.
    block: Prefix of the names of a block.
  """

  architecture: str
  prefix: str
  ignored: str
  copies: Mapping[str, str]
  options: Mapping[str, str]
  fixed: Mapping[str, Any]
  table: str
  block: str


_BERT_OPTIONS = {
    "num_blocks": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_LLAMA_OPTIONS = _BERT_OPTIONS | {
    "num_kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "hidden_width": "intermediate_size",
    "tied": "tie_word_embeddings",
    "norm_epsilon": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "rope_factor": "factor",
}
_LLAMA_COPIES = {"lm_head.weight": "model.embed_tokens.weight"}
_LLAMA_TENSORS = (_LLAMA + _LLAMA_ADAPTERS, "model.layers.{}.")
_LLAMA_FIXED = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
_SLOWED = {  # The rotations of Llama 3.
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        "BertForPreTraining",
        "bert.",
        r"\.position_ids$",
        {
            "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight"),
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        _BERT_OPTIONS,
        {
            "model_type": "bert",
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "type_vocab_size": 2,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
        },
        _BERT,
        "bert.encoder.layer.{}.",
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "transformer.",
        r"\.attn\.(masked_)?bias$",
        {"lm_head.weight": "transformer.wte.weight"},
        {
            "num_blocks": "n_layer",
            "width": "n_embd",
            "num_heads": "n_head",
            "positions": "n_positions",
            "vocab_size": "vocab_size",
            "tied": "tie_word_embeddings",
        },
        {
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
        },
        _GPT2 + _GPT2_ADAPTERS,
        "transformer.h.{}.",
    ),
    "llama": Family(
        "LlamaForCausalLM",
        "model.",
        r"rotary_emb\.inv_freq$",
        _LLAMA_COPIES,
        _LLAMA_OPTIONS,
        {"model_type": "llama", "mlp_bias": False, **_LLAMA_FIXED},
        *_LLAMA_TENSORS,
    ),
    "qwen": Family(
        "Qwen3ForCausalLM",
        "model.",
        r"rotary_emb\.inv_freq$",
        _LLAMA_COPIES,
        _LLAMA_OPTIONS,
        {"model_type": "qwen3", **_LLAMA_FIXED},
        *_LLAMA_TENSORS,
    ),
}
# Entries without effect on what our models compute; any other must be off.
_HARMLESS = frozenset("""
    _attn_implementation _attn_implementation_autoset _commit_hash
    _flash_attn_2_enabled _name_or_path architectures attn_implementation
    cache_implementation chunk_size_feed_forward dtype finetuning_task
    gradient_checkpointing id2label keys_to_ignore_at_inference label2id
    language model_max_length model_type name_or_path num_labels
    output_attentions output_hidden_states output_past prefix problem_type
    return_dict task_specific_params tf_legacy_loss tokenizer_class
    tokenizer_model_max_length tokenizer_padding_side torch_dtype torchscript
    transformers.js_config transformers_version unsloth_fixed unsloth_version
    use_bfloat16 use_cache

    attention_dropout attention_probs_dropout_prob attn_pdrop
    classifier_dropout embd_pdrop hidden_dropout_prob initializer_factor
    initializer_range resid_pdrop

    begin_suppress_tokens diversity_penalty do_sample early_stopping
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores repetition_penalty
    return_dict_in_generate suppress_tokens temperature top_k top_p typical_p

    directionality intermediate_size max_sequence_length n_ctx
    n_inner n_special pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type predict_special_tokens reorder_and_upcast_attn
    summary_activation summary_first_dropout summary_proj_to_labels
    summary_type summary_use_proj tie_word_embeddings
    """.split())
_TOKEN_ID = "_token_id"  # Ends the names of ids of special tokens.
_OFF: tuple[Any, ...] = (None, False, "", [], {})
_SWITCHES = {"is_causal": (None, True), "pretraining_tp": (*_OFF, 1)}
_FACTOR = re.compile(r"factor|multiplier|scal(e|ing)")  # Off if 1.
_ROPE = frozenset(  # Keys of `rope_scaling`, whose values are checked.
    (*_SLOWED, "factor", "partial_rotary_factor", "rope_theta")
)
_SCALINGS = ("rope_scaling", "rope_parameters")  # Older and newer name.


def family_of(name: str) -> Family:
  """Returns the family of a model; `ValueError` for one without."""
  if name not in FAMILIES:
    raise ValueError(base.suggest(name, FAMILIES, what="model to exchange"))
  return FAMILIES[name]


def read_options(family: Family, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Returns our options by name, and why a config.json does not fit our models."""
  found: dict[str, Any] = {"tie_word_embeddings": family.options is not _LLAMA_OPTIONS, **config}
  rope, unfit = _read_rope(config)
  found |= rope
  heads = found.get("num_attention_heads")
  if found.get("num_key_value_heads") is None:
    found["num_key_value_heads"] = heads
  if found.get("head_dim") is None and heads:
    found["head_dim"] = found.get("hidden_size", 0) // heads
  fixed = dict(family.fixed)
  if found.setdefault("rope_type", "default") == "default":
    found["factor"] = 1.0
  else:
    fixed = fixed | _SLOWED
  problems = [
      f"config.json has {key}={found.get(key)!r}, must be {value!r}"
      for key, value in fixed.items()
      if found.get(key, value) != value
  ]
  problems += [*_find_unknown(family, {**config, **rope}), *unfit]
  for theirs in family.options.values():
    if theirs not in found:
      problems.append(f"config.json has no {theirs}")
  options = {ours: found[theirs] for ours, theirs in family.options.items() if theirs in found}
  return options, problems


def _read_rope(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Returns the settings of rotations, and why they are not understood."""
  found = {key: config[key] for key in _ROPE & config.keys()}
  problems, kinds = [], []
  for name in _SCALINGS:
    scaling = dict(config.get(name) or {})
    if not scaling:
      continue
    kind = scaling.pop("type", None)  # The older name.
    kind = kind or scaling.get("rope_type", "default")
    scaling.setdefault("rope_type", kind)
    for key, value in sorted(scaling.items()):
      if key not in _ROPE:
        problems.append(f"config.json has {name}.{key}, which is unknown")
      other = kind if key == "rope_type" else found.get(key, value)
      if other != value:
        problems.append(f"config.json has {key}={other!r} and also {value!r}")
    kinds.append({k: v for k, v in scaling.items() if k != "rope_theta"})
    found |= {k: v for k, v in scaling.items() if k in _ROPE}
  if kinds[1:] and kinds[0].keys() != kinds[1].keys():
    problems.append(f"config.json has {' and other '.join(_SCALINGS)}")
  return found, problems


def _find_unknown(family: Family, config: Mapping[str, Any]) -> Iterator[str]:
  """Yields settings that may change the function and that our models lack."""
  known = {*family.options.values(), *family.fixed, *_HARMLESS}
  if "rope_theta" in known:
    known |= {*_SCALINGS, *_ROPE} - {"partial_rotary_factor"}
  if not config.get("use_sliding_window", config.get("sliding_window")):
    known |= {"sliding_window", "max_window_layers"}
  for key, value in config.items():
    if key in known or key.endswith(_TOKEN_ID):
      continue
    if key == "layer_types" and {*(value or ())} <= {"full_attention"}:
      continue
    allowed = _SWITCHES.get(key, _OFF)
    allowed += (1.0,) if _FACTOR.search(key) else ()
    # 1 is not True here: one is a factor, the other a switch.
    if not any(value == a and (value is True) == (a is True) for a in allowed):
      yield f"config.json has {key}={value!r}, which our models do not have"


def pick_token_ids(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the ids of special tokens in a config.json."""
  return {k: v for k, v in config.items() if k.endswith(_TOKEN_ID)}


def make_config(
    options: Mapping[str, Any], token_ids: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """Returns the config.json of a model; `options` are its fingerprint.

  Args:
    token_ids: See `pick_token_ids`; None: unknown.

  Raises:
    ValueError: The architecture of `transformers` lacks such an option.
  """
  family = family_of(options["name"])
  if options.get("attention_bias") is False:
    raise ValueError(
        f"{family.architecture} has no attention_bias=False, so these weights cannot be written "
        "for it."
    )
  options = {"positions": options.get("sequence_length"), **options}
  config = {
      "architectures": [family.architecture],
      "dtype": "float32",
      **family.fixed,
      **{theirs: options[ours] for ours, theirs in family.options.items()},
  }
  # Without entries the defaults of the class would hold.
  none = {"bos_token_id": None, "eos_token_id": None}
  config |= none if token_ids is None else token_ids
  factor = config.pop("factor", 1)
  if factor != 1:
    config["rope_scaling"] = {**_SLOWED, "factor": factor}
  if options["name"] == "bert":
    config["intermediate_size"] = 4 * options["width"]
  return config


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
  family = FAMILIES[fingerprint["name"]]
  num_tokens = None  # In arrays that have more rows.
  if fingerprint.get("vocab_multiple"):
    num_tokens = fingerprint["vocab_size"]
  rules = []
  for layer, arrays in shapes.items():
    part = _BLOCK.sub("", layer) or "block"
    numbers = map(int, re.findall(r"\d+", layer))
    start = family.block.format(*numbers) if part != layer else ""
    for row in filter(None, family.table.splitlines()):
      its_part, array, names, *transposed = row.split()
      if its_part == part and f"params/{array}" in arrays:
        before, _, rest = names.replace("{}", start).partition("(")
        inner, _, after = rest.partition(")")
        tensors = tuple(before + one + after for one in inner.split(","))
        rows = num_tokens if array in ("wte", "weight") else None
        rules.append(Rule(layer, f"params/{array}", tensors, bool(transposed), rows))
  return tuple(rules)
