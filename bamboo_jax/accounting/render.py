"""An account as text."""

from bamboo_jax.accounting import account as account_lib


def render_account(account: account_lib.Account) -> str:
  """Returns an account as lines for somebody to read."""
  price = account.price
  shares = account.node_time.shares()
  per_million = account.usd_per_million_samples
  lines = [
      f"price: ${price.usd_per_hour(account.market):g} an hour for a "
      f"{price.instance} ({account.market}; {price.source}, {price.date})",
      f"time: {account.secs / 3600:.4f} h on {account.num_nodes:.2f} nodes",
      f"samples: {account.num_samples:.0f}, {account.samples_per_sec:.4g} a "
      "second",
      f"cost: ${account.usd:.4f}, ${account.usd_per_hour:.4g} an hour (spot "
      f"${account.spot_usd:.4f}, on demand ${account.on_demand_usd:.4f})",
      f"value: {account.value:.4g} samples/s per $/h",
      "dollars per million samples: "
      + ("none trained" if per_million is None else f"{per_million:.4g}"),
      "time of the nodes:",
  ]
  lines += [f"  {kind:<12}{100 * s:6.2f} %" for kind, s in shares.items()]
  return "\n".join(lines)
