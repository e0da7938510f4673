"""Experiment trackers on the main executor, wherever that is: `isoscale run examples/trackers.py -- tensorboard`.

TensorBoard, Weights & Biases (offline) or MLflow (in an SQLite file); also tensorboardX. Each goes on with the run that
a predecessor began, after a kill, a rescale or a resume.
"""

import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from synthetic import network, points

import isoscale


def tensorboard(run: isoscale.MainRun) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    # What a predecessor has written of later steps is hidden: those values come again.
    return SummaryWriter(run.out / "tensorboard", purge_step=run.step + 1)


def tensorboardx(run: isoscale.MainRun) -> Any:
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(run.out / "tensorboard"), purge_step=run.step + 1)


def wandb(run: isoscale.MainRun) -> Any:
    import wandb

    return wandb.init(project="isoscale", id=run.id, name=run.name, dir=run.out, resume="allow", mode="offline")


def mlflow(run: isoscale.MainRun) -> Any:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{run.out}/mlflow.db")
    known = run.out / "mlflow_run"  # MLflow gives ids itself
    mlflow.start_run(run_id=known.read_text() if known.exists() else None, run_name=run.name)
    known.write_text(mlflow.active_run().info.run_id)
    return mlflow


def train(job: isoscale.Job, tracker: str = "tensorboard", turn_s: float = 0.0) -> None:
    job.on_main({"tensorboard": tensorboard, "tensorboardx": tensorboardx, "wandb": wandb, "mlflow": mlflow}[tracker])
    model = job.model(network())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(points(train=True), batch_size=16, shuffle=True)
    validation = job.loader(points(train=False), batch_size=64, train=False)

    for _ in job.epochs(3):
        for step in loader:
            for x, y in step:
                time.sleep(turn_s)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for x, y in step:
                with torch.no_grad():
                    step.sum(correct=(model(x).argmax(1) == y).sum(), seen=len(y))
        model.train()
        job.log(accuracy=validation.totals["correct"] / validation.totals["seen"])


if __name__ == "__main__":
    name, seconds = (*sys.argv[1:], *("tensorboard", "0")[len(sys.argv) - 1 :])
    isoscale.run(lambda job: train(job, name, float(seconds)))
