#!/bin/bash
#SBATCH --job-name=mine --nodes=4 --ntasks-per-node=1 --cpus-per-task=8 --signal=B:USR1@60
# NOT TRIED: no Slurm cluster has run it yet.
#
# A Ray cluster inside one allocation, and a job on it; a minute before the time is over the job is stopped after a
# checkpoint, and the same script, submitted again, goes on with it.
set -euo pipefail
DIR=$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_NAME
HEAD=$(hostname -I | cut -d' ' -f1)
PORT=6379
export RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0

srun --nodes=1 --ntasks=1 --nodelist="$(hostname)" \
    ray start --head --node-ip-address="$HEAD" --port=$PORT --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$(hostname)" \
    ray start --address="$HEAD:$PORT" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15

RESUME=
if [ -d "$DIR/checkpoints" ]; then RESUME=--resume; fi
# shellcheck disable=SC2086
isoscale run train.py --workers 32 --executors 16 --out "$DIR" $RESUME --checkpoint-every 500 \
    --backend ray --address "$HEAD:$PORT" &
RUN=$!
trap 'isoscale stop "$DIR"' USR1
while kill -0 $RUN 2>/dev/null; do wait $RUN || true; done
