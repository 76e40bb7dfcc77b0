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

from absl import flags

from bamboo_jax.launch import cli, flag_checks

_KINDS = ["hf", "peft"]
_FROM = flags.DEFINE_enum("from", None, _KINDS, "What `--path` is.")
_TO = flags.DEFINE_enum("to", None, _KINDS, "What `--out` will be.")
_MODEL = flags.DEFINE_string("model", None, "Name of the model.", required=True)
_PATH = flags.DEFINE_string("path", None, "Folder to read.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
_TOKENIZER = flags.DEFINE_string(
    "tokenizer", None, "Folder whose tokenizer to export; by default the run's."
)
_MAX_FILE_GB = flags.DEFINE_float(
    "max_file_gb", 5.0, "Size of one safetensors file.", lower_bound=0.0
)


def main() -> None:
  """Converts weights, and prints a summary."""
  flag_checks.check_one_of(_FROM, _TO)
  flag_checks.check_one_of(_FROM, _TOKENIZER)
  if not (_FROM.value or _TO.value):
    raise ValueError("Give --from or --to: hf or peft.")
  from bamboo_jax.exchange import weights

  if _FROM.value:
    model = weights.import_folder(_PATH.value, name=_MODEL.value, out=_OUT.value)
    num_params = model.num_params()
  else:
    num_params = weights.export_folder(
        _PATH.value,
        name=_MODEL.value,
        out=_OUT.value,
        kind=_TO.value or "hf",
        max_file_bytes=int(_MAX_FILE_GB.value * 1e9),
        tokenizer=_TOKENIZER.value,
    )
  print(f"{_OUT.value}: {_MODEL.value}, {num_params:,} parameters")


if __name__ == "__main__":
  cli.run(main)
