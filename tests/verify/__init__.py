"""Deaths at every point of real steps: `bamboo_jax.verify`."""
