"""Fine-tunes a GPT-2 of `transformers`: python examples/finetune.py FOLDER.

FOLDER has config.json, tokenizer.json and model.safetensors, as from
`save_pretrained` or a download. To get such a folder back:

    bamboo convert --to=hf --model=gpt2 --path=runs/finetune --out=tuned
"""

import json
import pathlib
import sys

import bamboo_jax


def get_config(folder="gpt2"):
  hub = json.loads(pathlib.Path(folder, "config.json").read_text())
  config = bamboo_jax.get_config("quickstart")
  config.num_steps = 20
  config.init_from = folder
  config.model.options = dict(
      variant="small",
      num_blocks=hub["n_layer"],
      width=hub["n_embd"],
      num_heads=hub["n_head"],
      vocab_size=hub["vocab_size"],
      positions=hub["n_positions"],
      sequence_length=min(128, hub["n_positions"]),
  )
  config.data.options = dict(tokenizer=folder)
  config.pipeline.num_stages = 2
  config.redundancy.spares = 0
  config.optimizer.learning_rate = 1e-5
  return config


if __name__ == "__main__":
  faults = ["5,0/0,3,kill", "9,1/1,reduce,kill"]  # Two of four nodes die.
  result = bamboo_jax.train(get_config(sys.argv[1]), workdir="runs/finetune", faults=faults)
  print(result)
