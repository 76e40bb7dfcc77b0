#!/usr/bin/env bash
# A run under SkyPilot on spot machines. From the top folder of the repository:
#
#   WORKDIR=s3://BUCKET/RUN docs/deploy/skypilot.sh up 9 --env CONFIG=quickstart
#   docs/deploy/skypilot.sh down 9
#
# What follows the number of machines goes to `sky jobs launch`. A machine that
# cannot be had, as a quota is exhausted, is named, and the others are launched.
set -euo pipefail
files="$(dirname "${BASH_SOURCE[0]}")"
command="${1:?up or down}" last=$((${2:?number of machines} - 1))
shift 2
case "$command" in
  up)
    : "${WORKDIR:?must be s3://BUCKET/RUN, which all machines may write}"
    for i in $(seq 0 "$last"); do
      sky jobs launch --yes --detach-run --name="bamboo-$i" --env "WORKDIR=$WORKDIR" \
        "$@" "$files/skypilot_agent.yaml" || echo "bamboo-$i: not launched"
    done
    ;;
  down)
    for i in $(seq 0 "$last"); do
      sky jobs cancel --yes --name="bamboo-$i" || echo "bamboo-$i: not found"
    done
    ;;
  *)
    echo "error: $command must be up or down" >&2
    exit 2
    ;;
esac
