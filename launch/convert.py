r"""Converts weights from and for `transformers` (Hugging Face).

bamboo convert --from=hf --model=gpt2 --path=gpt2 --out=imported
bamboo convert --to=hf --model=gpt2 --path=runs/gpt2 --out=exported

The first reads safetensors files and config.json, and writes a checkpoint; the
second reads a checkpoint, or the newest of a workdir, and writes a folder that
`AutoModelForCausalLM.from_pretrained` loads. `--config.init_from` of
`bamboo train` takes folders of both kinds. All weights are float32. Files of a
tokenizer are copied from the folder of the weights or of the text, if that is
known, or from `--tokenizer`.

bamboo convert --to=peft --model=llama --path=runs/lora --out=adapter
bamboo convert --to=hf --model=llama --path=runs/lora --out=merged

Of a run with adapters (LoRA) the first writes these for `peft`, and the second
adds them to the weights. `--from=peft` reads adapters, and the model in the
folder that their adapter_config.json names.
"""

import dataclasses

from bamboo_jax.cli.flagset import flag
from bamboo_jax.launch import cli

_KINDS = ("hf", "peft")


@dataclasses.dataclass(frozen=True)
class ConvertFlags:
  """Weights to read and to write."""

  from_: str | None = flag(None, "What `--path` is.", choices=_KINDS, excludes="to tokenizer")
  to: str | None = flag(None, "What `--out` will be.", choices=_KINDS)
  model: str = flag(None, "Name of the model.", is_needed=True)
  path: str = flag(None, "Folder to read.", is_needed=True)
  out: str = flag(None, "Folder to write.", is_needed=True)
  tokenizer: str | None = flag(None, "Folder whose tokenizer to export; by default the run's.")
  max_file_gb: float = flag(5.0, "Size of one safetensors file.", above=0)


def main(flags: ConvertFlags) -> None:
  """Converts weights, and prints a summary."""
  if not (flags.from_ or flags.to):
    raise ValueError("Give --from or --to: hf or peft.")
  from bamboo_jax.exchange import weights

  if flags.from_:
    model = weights.import_folder(flags.path, name=flags.model, out=flags.out)
    num_params = model.num_params()
  else:
    num_params = weights.export_folder(
        flags.path,
        name=flags.model,
        out=flags.out,
        kind=flags.to or "hf",
        max_file_bytes=int(flags.max_file_gb * 1e9),
        tokenizer=flags.tokenizer,
    )
  print(f"{flags.out}: {flags.model}, {num_params:,} parameters")


if __name__ == "__main__":
  cli.run(main)
