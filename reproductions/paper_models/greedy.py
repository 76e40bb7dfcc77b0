"""Greedy translation with a trained GNMT.

Dimension key:

  S: sentences
  L: sequence length of the source, tokens
  T: sequence length of the target, tokens
  D: model width
  V: vocabulary
"""

from collections.abc import Mapping
import functools

import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib, model as model_lib
from bamboo_jax.reproductions.paper_models import gnmt


def translate(
    model: model_lib.Model, variables: Mapping[str, layer_lib.Variables], source_SL: jax.Array
) -> jax.Array:
  """Returns the targets, int32 [S, T]; 0 ends and pads each.

  `model` is made by `gnmt`, `variables` are those of all its layers, by name.
  Each token takes a pass of the whole decoder.
  """
  params = {name: jax.tree.map(jnp.asarray, v.params) for name, v in variables.items()}
  stats = {name: v.stats for name, v in variables.items()}
  run = functools.partial(model_lib.apply_range, params=params, stats=stats, key=None, train=False)
  batch = {"source": source_SL}
  decoder, head = map(model.layer_names.index, ("decoder_embed", "head"))
  memory_SLD, _ = run(model, 0, decoder, inputs=None, batch=batch)

  def extend(place: jax.Array, target_ST: jax.Array) -> jax.Array:
    inputs_ST = jnp.roll(target_ST, 1, axis=1).at[:, 0].set(gnmt.END)
    (_, h_STD), _ = run(
        *(model, decoder, head), inputs=memory_SLD, batch={**batch, "inputs": inputs_ST}
    )
    logits_SV = h_STD[:, place] @ params["head"]["weight"]
    has_ended_S = (inputs_ST[:, place] == gnmt.END) & (place > 0)
    token_S = jnp.where(has_ended_S, gnmt.END, logits_SV.argmax(-1))
    return target_ST.at[:, place].set(token_S)

  (length,) = model.sample["inputs"].shape
  start_ST = jnp.zeros((len(source_SL), length), jnp.int32)
  return jax.lax.fori_loop(0, length, extend, start_ST)
