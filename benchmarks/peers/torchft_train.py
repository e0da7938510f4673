"""torchft's side: one replica group of one process, after the project's own train_ddp.py.

`REPLICA_GROUP_ID` says which replica this is, `TORCHFT_LIGHTHOUSE` where the lighthouse listens. With
`--as-shipped` the DDP comm hook is torchft's own; without it a hook that reports a dead peer to the Manager.
"""

# No postponed annotations: DDP reads those of the comm hook as objects.
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from benchmarks.peers.committed import MOMENTUM, RATE, commit_log, options, save_whole

REPLICAS = 2


class RepairedDDP(DistributedDataParallel):
    """torchft 0.2.0's hook asserts on the future of a failed all-reduce, and the survivor dies with its peer."""

    @staticmethod
    def _comm_hook(
        state: Manager,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        try:
            work = state.allreduce(buffer)
            work.wait()
            managed: Any = work.get_future()
            if getattr(managed, "_fut", None) is not None:
                return managed._fut
        except Exception as error:
            state.report_error(error)
        # The step is not committed, so what the buffer holds does not matter.
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


def main() -> None:
    as_shipped = "--as-shipped" in sys.argv
    if as_shipped:
        sys.argv.remove("--as-shipped")
    load, steps, folder = options()
    torch.set_num_threads(1)
    replica = int(os.environ["REPLICA_GROUP_ID"])
    committed = commit_log(folder)
    # torchrun would start this store; alone the replica starts it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    module = load.make()
    inner = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)

    def load_state(state: Any) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load_state,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica_{replica}",
        hostname="127.0.0.1",
    )
    model = (DistributedDataParallel if as_shipped else RepairedDDP)(manager, module)
    optimizer = Optimizer(manager, inner)
    torch.manual_seed(replica)
    sampler = DistributedSampler(load.data, replica, REPLICAS, group_rank=0, num_replicas=1, shuffle=True)
    loader, epoch = DataLoader(load.data, load.batch, sampler=sampler), 0
    while manager.current_step() < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for x, y in loader:
            before = manager.current_step()
            optimizer.zero_grad()
            load.loss(model, x, y).backward()
            optimizer.step()
            if manager.current_step() > before:
                committed(manager.current_step(), manager.num_participants())
            if manager.current_step() >= steps:
                break
    save_whole({"model": module.state_dict(), "step": manager.current_step()}, folder / "final.pt")
    manager.shutdown(wait=False)
    # Threads of the Manager can keep the process alive; everything is written.
    os._exit(0)


if __name__ == "__main__":
    main()
