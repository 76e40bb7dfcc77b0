#!/usr/bin/env bash
# A run of bamboo_jax under Slurm; see the guide, docs/guides/slurm.md.
#
#   export WORKDIR=/shared/run CONFIG=quickstart NODES=8
#   sbatch --partition=cpu slurm.sh \
#     --array=0-8 --partition=preemptible --gres=gpu:1
#
# The job runs the store; it needs no GPU and must not be preempted. It submits
# the nodes, as an array of this file with the options after its name: each task
# is a job of its own, so a preempted one is requeued alone. When the run is
# complete, or the job is cancelled, it cancels the array. A requeue of the job
# itself would submit the nodes again.
#SBATCH --job-name=bamboo
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --open-mode=append
#SBATCH --no-requeue
set -euo pipefail
: "${WORKDIR:?must name a folder that all nodes share}"
: "${CONFIG:=quickstart}" "${NODES:=8}"
# Each task has the address of its own machine: that of the network INTERFACE, or
# the first one.
if test -n "${INTERFACE:-}"; then
  address="$(ip -4 -oneline address show dev "$INTERFACE" |
    awk 'NR == 1 {print $4}')"
  address="${address%%/*}"
  : "${address:?INTERFACE=$INTERFACE has no address of IPv4 on this machine}"
else
  address="$(hostname -I | cut -d ' ' -f 1)"
fi
endpoint="$WORKDIR/endpoint.json"

start_run() {
  mkdir -p "$WORKDIR/logs"
  rm -f "$endpoint"
  bamboo store --workdir="$WORKDIR" --host="$address" --port=0 &
  store=$! nodes=""
  trap 'kill "$store" 2>/dev/null || true
    test -z "$nodes" || scancel "$nodes"' EXIT
  trap 'exit 143' TERM INT
  until test -e "$endpoint"; do
    kill -0 "$store" 2>/dev/null || wait "$store"
    sleep 0.2
  done
  # The nodes are not steps of this job. SIGTERM is the notice, for steps only.
  for name in "${!SLURM_@}"; do
    test "$name" = SLURM_CONF || unset "$name"
  done
  nodes="$(sbatch --parsable --job-name=bamboo-node --requeue \
    --signal=TERM@60 --output="$WORKDIR/logs/slurm-%A_%a.out" "$@" "$0")"
  echo "array of nodes: $nodes"
  while kill -0 "$store" 2>/dev/null; do
    sleep 2 & wait $!
    # If Slurm does not answer, there is nothing to conclude.
    if left="$(squeue --noheader --jobs="$nodes")" && test -z "$left"; then
      test "$WORKDIR/summary.json" -nt "$endpoint" && exit
      echo "error: all nodes have ended; see $WORKDIR/logs/slurm-$nodes"_*.out
      exit 2  # Others are requeued, so all nodes have ended with this status.
    fi
  done
  wait "$store"
}

run_node() {
  local status=0 topology="${SLURM_TOPOLOGY_ADDR:-$SLURMD_NODENAME}"
  # Slurm sends SIGTERM to the step when it preempts the job, and 60 s before
  # the time limit: other nodes take over its stages, and the agent ends.
  # The step does not inherit the cores of the job from `sbatch`.
  srun --ntasks=1 \
    ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    bamboo agent \
    --config="$CONFIG" \
    --workdir="$WORKDIR" \
    --nodes="$NODES" \
    --name="n$SLURM_ARRAY_TASK_ID-${SLURM_RESTART_COUNT:-0}" \
    --zone="${topology%.*}" \
    --host="$address" || status=$?
  # Not if it failed: a summary may be that of an earlier run.
  ((status)) || ! test "$WORKDIR/summary.json" -nt "$endpoint" || exit 0
  echo "The agent has ended with status $status."
  # An error in the command, the code or the data: every try would end so.
  ((status != 2)) || exit 2
  # The number of the job is that of the whole array; this names the task.
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
}

if test -n "${SLURM_ARRAY_TASK_ID:-}"; then run_node; else start_run "$@"; fi
