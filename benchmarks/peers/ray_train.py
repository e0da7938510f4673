"""Ray Train's side: an elastic TorchTrainer on one to two workers, that loads its newest checkpoint when it restarts.

Ray Train changes its size by ending all workers and starting others from the newest checkpoint (every 20 steps, as for
torchrun), and so it does when one dies. The sampler splits the data by the present number of workers, as torch's does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

CHECKPOINT_EVERY = 20
#: it looks for other nodes so often; its default is 60
RESIZE_EVERY_S = 5.0


def train(config: dict[str, Any]) -> None:
    """On every worker."""
    import ray.train
    import ray.train.torch
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    from benchmarks.lib.models import workload
    from benchmarks.peers.committed import MOMENTUM, RATE, commit_log, save_whole

    load, steps, folder = workload(config["workload"]), config["steps"], Path(config["commits"])
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)
    committed = commit_log(folder)
    torch.manual_seed(0)
    made = load.make()
    optimizer = torch.optim.SGD(made.parameters(), lr=RATE, momentum=MOMENTUM)
    step, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            kept = torch.load(Path(directory) / "state.pt", weights_only=True)
        made.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    model = ray.train.torch.prepare_model(made)
    if workers == 1:
        model = made
    torch.manual_seed(rank)
    sampler: DistributedSampler[Any] = DistributedSampler(load.data, workers, rank, shuffle=True)
    loader = DataLoader(load.data, load.batch, sampler=sampler)
    while step < steps:
        epoch, begin = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < begin:
                continue
            load.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            committed(step, workers)
            if step % CHECKPOINT_EVERY == 0:
                with tempfile.TemporaryDirectory() as directory:
                    state = {"model": made.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    if rank == 0:
                        torch.save(state, Path(directory) / "state.pt")
                    kept_now = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
                    ray.train.report({"step": step}, checkpoint=kept_now)
            if step >= steps:
                break
    if rank == 0:
        save_whole({"model": made.state_dict(), "step": step}, folder / "final.pt")


def main() -> None:
    import ray
    import ray.train
    import ray.train.torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--commits", type=Path, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--least", type=int, required=True, help="workers; at most two")
    chosen = parser.parse_args()
    root = str(Path(__file__).resolve().parents[2])
    variables = {"PYTHONPATH": root, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ray.init(address=chosen.address, namespace="ray-train", runtime_env={"env_vars": variables})
    config = {"workload": chosen.workload, "steps": chosen.steps, "commits": str(chosen.commits)}
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config=config,
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=(chosen.least, 2),
            resources_per_worker={"CPU": 1},
            elastic_resize_monitor_interval_s=RESIZE_EVERY_S,
        ),
        run_config=ray.train.RunConfig(
            name="train",
            storage_path=str(chosen.commits.parent / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()


if __name__ == "__main__":
    main()
