#!/usr/bin/env bash
# A run of bamboo_jax under Slurm; see the guide, docs/guides/deploy.md.
#
#   export WORKDIR=/shared/run CONFIG=quickstart NODES=8
#   sbatch --array=0-8 --partition=preemptible --gres=gpu:1 slurm.sh
#
# Each task of the array is a node, and a job of its own, so a preempted one is
# requeued alone. When the run is complete, tasks that have not started are
# cancelled.
#SBATCH --job-name=bamboo
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --signal=TERM@60
#SBATCH --open-mode=append
set -euo pipefail
: "${WORKDIR:?must name a folder that all nodes share, or s3://BUCKET/RUN}"
: "${SLURM_ARRAY_TASK_ID:?must be submitted with --array}"
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
status=0 topology="${SLURM_TOPOLOGY_ADDR:-$SLURMD_NODENAME}"
# Slurm sends SIGTERM to the step when it preempts the job, and 60 s before the
# time limit: other nodes take over its stages, and the agent ends. The step does
# not inherit the cores of the job from `sbatch`.
srun --ntasks=1 \
  ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
  bamboo agent \
  --config="$CONFIG" \
  --workdir="$WORKDIR" \
  --nodes="$NODES" \
  --name="n$SLURM_ARRAY_TASK_ID-${SLURM_RESTART_COUNT:-0}" \
  --zone="${topology%.*}" \
  --host="$address" || status=$?
case "$status" in
  0) scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" ;; # The run is complete.
  2) exit 2 ;; # An error in the command, the code or the data: every try ends so.
  *)
    echo "The agent has ended with status $status."
    # The number of the job is that of the whole array; this names the task.
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    ;;
esac
