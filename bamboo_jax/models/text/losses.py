"""Cross-entropy over a large vocabulary, fused with the head of the model.

One array of the size of the logits is kept: `spread_TV`, softmax minus target,
times the sum of exponentials of its row. It is the gradient of the logits but
for a factor per row, which by linearity moves into the much smaller arrays of
the backward products. So that pass reads the large array twice and writes none.

Dimension key:
  T: tokens of the microbatch
  D: model width
  V: vocabulary
"""

import functools

import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models.text import dense

Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def token_loss(
    h_TD: jax.Array,
    weight: jax.Array,
    target_T: jax.Array,
    *,
    vocab_first: bool,
) -> layer_lib.Loss:
  """Returns the cross-entropy of the targets given a projection of `h_TD`.

  Products run in the dtype of `h_TD`, which may have any leading dimensions;
  `weight`, softmax and loss are float32. Targets below zero do not count.
  `weight` is [V, D], as an embedding, if `vocab_first`, else [D, V] (faster).
  """
  h_TD = h_TD.reshape(-1, h_TD.shape[-1])
  target_T = target_T.reshape(-1)
  counts_T = target_T >= 0
  losses_T = _losses(vocab_first, h_TD, weight, jnp.maximum(target_T, 0))
  return layer_lib.Loss(
      total=jnp.where(counts_T, losses_T, 0).sum(),
      weight=counts_T.sum(dtype=jnp.float32),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(
    vocab_first: bool, h_TD: jax.Array, weight: jax.Array, target_T: jax.Array
) -> jax.Array:
  return _losses_forward(vocab_first, h_TD, weight, target_T)[0]


def _losses_forward(
    vocab_first: bool, h_TD: jax.Array, weight: jax.Array, target_T: jax.Array
) -> tuple[jax.Array, Kept]:
  logits_TV = jnp.einsum(
      "td,vd->tv" if vocab_first else "td,dv->tv",
      h_TD,
      weight.astype(h_TD.dtype),
      preferred_element_type=jnp.float32,
  )
  largest_T = logits_TV.max(-1)
  exp_TV = jnp.exp(logits_TV - largest_T[:, None])
  sum_T = exp_TV.sum(-1)
  entry = (jnp.arange(target_T.size), target_T)
  losses_T = jnp.log(sum_T) + largest_T - logits_TV[entry]
  spread_TV = exp_TV.at[entry].add(-sum_T).astype(h_TD.dtype)
  return losses_T, (h_TD, weight, spread_TV, 1 / sum_T)


def _losses_backward(
    vocab_first: bool, kept: Kept, grad_T: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
  h_TD, weight, spread_TV, inverse_T = kept
  factor_T1 = (grad_T * inverse_T)[:, None]
  scaled_TD = (h_TD * factor_T1).astype(h_TD.dtype)
  grad_h_TD = factor_T1 * jnp.einsum(
      "tv,vd->td" if vocab_first else "tv,dv->td",
      spread_TV,
      weight.astype(h_TD.dtype),
      preferred_element_type=jnp.float32,
  )
  left, right = scaled_TD, spread_TV
  if vocab_first:
    left, right = right, left
  grad_weight = jnp.matmul(
      dense.transpose(left), right, preferred_element_type=jnp.float32
  )
  return grad_h_TD.astype(h_TD.dtype), grad_weight, None


_losses.defvjp(_losses_forward, _losses_backward)
