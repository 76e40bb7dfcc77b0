#!/usr/bin/env bash
# The machine that must be up anyway: etcd, and JAX's coordination service.
#
#   HOST=10.0.0.5 RUN_SECRET=/path/of/secret ./store.sh
#
# HOST is the address at which all nodes reach this machine. Not tried on a
# cloud; both commands are the ones that run on one machine.
set -euo pipefail

etcd \
  --data-dir="${DATA_DIR:-$HOME/bamboo-etcd}" \
  --auto-compaction-mode=periodic --auto-compaction-retention=5m \
  --listen-client-urls="http://$HOST:2379,http://127.0.0.1:2379" \
  --advertise-client-urls="http://$HOST:2379" &
trap 'kill %1' EXIT

# Takes port 8476, and one port more whenever slots run out. It goes on where it
# was when it is started again.
while true; do
  python -m launch.coordinator --port=8476 --host="$HOST" \
    --etcd="$HOST:2379" --run="${RUN:-run}" --secret="$RUN_SECRET" || sleep 1
done
