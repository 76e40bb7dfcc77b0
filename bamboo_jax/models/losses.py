"""Cross-entropy over a large vocabulary, fused with the head of the model.

The forward pass keeps one array of the size of the logits, their exponentials
less the row's largest, and never subtracts the target or divides by the sum
there: by linearity both are done on rows of the much smaller factors.

Dimension key:
  T: any leading dimensions, such as examples by tokens
  D: model width
  V: vocabulary
"""

import jax
import jax.numpy as jnp

from bamboo_jax.models import layer as layer_lib


def token_loss(
    h_TD: jax.Array, weight_VD: jax.Array, target_T: jax.Array
) -> layer_lib.Loss:
  """Returns the cross-entropy of `target_T` given logits h_TD @ weight_VD.T.

  Args:
    h_TD: Activations; their dtype is that of the products.
    weight_VD: A row for every token of the vocabulary, float32.
    target_T: Right answers; one below zero does not count.
  """
  counts_T = target_T >= 0
  losses_T = _losses(
      h_TD.reshape(-1, h_TD.shape[-1]), weight_VD, target_T.reshape(-1)
  )
  return layer_lib.Loss(
      total=jnp.where(counts_T.reshape(-1), losses_T, 0).sum(),
      weight=counts_T.sum(dtype=jnp.float32),
  )


@jax.custom_vjp
def _losses(h_TD, weight_VD, target_T):
  return _losses_forward(h_TD, weight_VD, target_T)[0]


def _losses_forward(h_TD, weight_VD, target_T):
  logits_TV = jnp.einsum(
      "td,vd->tv",
      h_TD,
      weight_VD.astype(h_TD.dtype),
      preferred_element_type=jnp.float32,
  )
  top_T = logits_TV.max(-1)
  exp_TV = jnp.exp(logits_TV - top_T[:, None])
  sum_T = exp_TV.sum(-1)
  target_logits_T = jnp.take_along_axis(
      logits_TV, jnp.maximum(target_T, 0)[:, None], axis=-1
  )[:, 0]
  losses_T = jnp.log(sum_T) + top_T - target_logits_T
  kept = (h_TD, weight_VD, target_T, exp_TV.astype(h_TD.dtype), 1 / sum_T)
  return losses_T, kept


def _losses_backward(kept, grad_T):
  h_TD, weight_VD, target_T, exp_TV, inverse_T = kept
  dtype = h_TD.dtype
  rows_T = jnp.maximum(target_T, 0)
  share_T = (grad_T * inverse_T)[:, None]
  grad_h_TD = share_T * jnp.einsum(
      "tv,vd->td",
      exp_TV,
      weight_VD.astype(dtype),
      preferred_element_type=jnp.float32,
  )
  grad_h_TD -= grad_T[:, None] * weight_VD[rows_T]
  h32_TD = h_TD.astype(jnp.float32)
  grad_weight_VD = jnp.einsum(
      "tv,td->vd",
      exp_TV,
      (share_T * h32_TD).astype(dtype),
      preferred_element_type=jnp.float32,
  )
  grad_weight_VD = grad_weight_VD.at[rows_T].add(-grad_T[:, None] * h32_TD)
  return grad_h_TD.astype(dtype), grad_weight_VD, None


_losses.defvjp(_losses_forward, _losses_backward)
