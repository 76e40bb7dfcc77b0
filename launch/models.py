r"""Lists the models and their variants: `name,variant,layers,params`.

bamboo models

A config chooses one by `model.name` and `model.options.variant`. Parameters
that several layers share are counted once. Allocates nothing.
"""

from bamboo_jax.launch import cli


def main() -> None:
  """Prints the list as CSV."""
  from bamboo_jax.models import zoo

  print("name,variant,layers,params")
  for name, variants in zoo.VARIANTS.items():
    for variant in variants:
      model = zoo.make_model(name, variant=variant)
      num_params = model.num_params()
      print(f"{name},{variant},{len(model.layers)},{num_params}", flush=True)


if __name__ == "__main__":
  cli.run(main)
