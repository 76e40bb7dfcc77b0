"""Has SkyPilot read tasks and commands; runs in an environment with SkyPilot.

Of standard input it reads a JSON object: `tasks` are paths of files, `commands`
lists of words after `sky`. Prints the parts of each that were understood.
"""

import json
import sys

import sky
from sky.client.cli import command as cli
import yaml


def parse_task(path):
  """Returns the machines that the file asks for."""
  with open(path) as file:
    task = sky.Task.from_yaml_config(yaml.safe_load(file), {"WORKDIR": "s3://b/run"})
  (resources,) = task.resources
  return {
      "num_nodes": task.num_nodes,
      "infra": resources.infra.to_str(),
      "accelerators": resources.accelerators,
      "cpus": resources.cpus,
      "use_spot": resources.use_spot,
      "envs": task.envs,
  }


def parse_command(words):
  """Returns the options that are given; raises for those that do not exist."""
  command = cli.cli
  while hasattr(command, "commands"):
    name, *words = words
    command = command.commands[name]
  params = command.make_context(name, words).params
  return {name: value for name, value in params.items() if value}


def main():
  given = json.load(sys.stdin)
  found = {
      "tasks": [parse_task(path) for path in given["tasks"]],
      "commands": [parse_command(words) for words in given["commands"]],
  }
  json.dump(found, sys.stdout)


if __name__ == "__main__":
  main()
