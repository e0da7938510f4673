"""Four scripts in the shape of well-known ones, ported: rescaled, hurt, killed and resumed in mid-epoch on another
number of executors they end as the stock script does under torchrun. And `verify` finds them equal to stock DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isoscale.testing import Nursery, faults, start
from tests.cli.test_porting import assert_equal_bits
from tests.forked import Forked

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parents[2] / "examples" / "porting"
PROGRAMS = Path(sys.executable).parent
WORKERS = 3
#: runs a script with arguments, in a directory (`cwd`)
Stock = Callable[..., None]
#: committed steps after which the job grows, loses an executor, and dies whole: all in mid-epoch
GROWS, LOSES = 3, 5


def command(*parts: str, cwd: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [str(PROGRAMS / parts[0]), *parts[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def stock(request: pytest.FixtureRequest, tmp_path: Path) -> Stock:
    """A stock script with as many processes as there are logical workers, which with --long torchrun starts."""

    def run(script: Path, *arguments: str, cwd: Path) -> None:
        if request.config.getoption("--long"):
            command("torchrun", "--nproc-per-node", str(WORKERS), str(script), *arguments, cwd=cwd)
            return
        # What torchrun gives its processes, which import nothing: they are forked.
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS), "GLOO_SOCKET_IFNAME": "lo"}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = [
            Forked(
                script,
                *arguments,
                log=tmp_path / f"stock-{rank}.log",
                cwd=cwd,
                environment={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(WORKERS)
        ]
        try:
            assert [rank.wait(280) for rank in ranks] == [0] * WORKERS, [rank.output for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()

    return run


def live_through(name: str, directory: Path, nursery: Nursery, *, dies: int, arguments: list[str]) -> Path:
    """The port, from one executor to three, one of which is killed, until all are; the rest of it on two."""
    script, out = SCRIPTS / f"{name}_after.py", directory / "after"
    points = [
        faults.at("seal", executor=1, step=LOSES),
        # Nobody goes on without executor 0, so that the whole job can be killed at a known place.
        faults.at("forward", executor=0, step=dies, action="stop"),
    ]
    options = {"out": out, "workers": WORKERS, "checkpoint_every": 2, "nursery": nursery, "script_args": arguments}
    job = start(script, plan=f"0:1,{GROWS}:3", points=points, lost_after_s=300.0, **options)
    try:
        job.wait_step(dies - 1)
        job.wait_for(lambda: any(one["step"] >= dies - 3 for one in job.events("checkpoint")), "a checkpoint")
        job.kill_all()
        again = start(script, executors=2, resume=True, record=job.record, lost_after_s=30.0, **options)
        try:
            assert again.wait() == 0, again.output()
        finally:
            again.close()
    finally:
        job.close()
    again.check_promises()
    kinds = {(one["from"], one["to"]) for one in again.events("rescale")}
    assert (1, 3) in kinds
    assert again.events("executor_lost")
    return out


def compare(old: Path, new: Path, keys: set[str]) -> None:
    before, after = (torch.load(path, weights_only=True) for path in (old, new))
    assert before.keys() & after.keys() >= keys
    assert sum(assert_equal_bits(before[key], after[key], f"{new.name}: {key}") for key in sorted(keys)) > 10


def both(
    name: str,
    directory: Path,
    nursery: Nursery,
    stock: Stock,
    *,
    dies: int,
    before: list[str] | None = None,
    after: list[str] | None = None,
) -> tuple[Path, Path]:
    """What the stock script and the port have left."""
    out = directory / "before.pt"
    stock(SCRIPTS / f"{name}_before.py", "--out", str(out), *(before or []), cwd=directory)
    return out, live_through(name, directory, nursery, dies=dies, arguments=after or [])


def test_iterations_whose_batches_are_drawn_in_the_turn(tmp_path: Path, nursery: Nursery, stock: Stock) -> None:
    before, out = both("iterations", tmp_path, nursery, stock, dies=9)
    compare(before, out / "final.pt", {"model", "optimizer"})
    compare(Path(f"{before}.best"), out / "best.pt", {"model", "iter_num"})


def test_meters_and_a_warm_start_from_a_checkpoint_of_its_own(tmp_path: Path, nursery: Nursery, stock: Stock) -> None:
    warm = ["--resume", str(tmp_path / "warm.pt")]
    sys.path.insert(0, str(SCRIPTS))
    try:
        from tiny import residual_network
    finally:
        sys.path.remove(str(SCRIPTS))
    model = residual_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    saved = {"epoch": 1, "best_acc1": 0.3, "state_dict": state, "optimizer": optimizer.state_dict()}
    torch.save(saved, tmp_path / "warm.pt")

    before, out = both("meters", tmp_path, nursery, stock, dies=13, before=warm, after=warm)
    compare(before, out / "checkpoint.pt", {"epoch", "best_acc1", "train_loss", "state_dict", "optimizer"})
    compare(Path(f"{before}.best"), out / "best.pt", {"epoch", "best_acc1", "state_dict"})


def test_a_trainer_with_snapshots(tmp_path: Path, nursery: Nursery, stock: Stock) -> None:
    before, out = both("trainer", tmp_path, nursery, stock, dies=13)
    compare(before, out / "snapshot.pt", {"model_state", "optimizer_state", "finished_epoch"})


def test_accumulation_over_batches_groups_by_module_and_f1_of_all_predictions(
    tmp_path: Path, nursery: Nursery, stock: Stock
) -> None:
    before, out = both("glue", tmp_path, nursery, stock, dies=11)
    compare(before, out / "final.pt", {"model", "optimizer", "schedule", "state"})


@pytest.mark.parametrize("name", ["iterations", "meters", "trainer", "glue"])
def test_verify_finds_it_equal_to_stock_ddp(name: str, tmp_path: Path) -> None:
    options = ["--workers", str(WORKERS), "--executors", "2", "--until", "4", "--out", str(tmp_path / "v")]
    assert "equal: " in command("isoscale", "verify", str(SCRIPTS / f"{name}_after.py"), *options, cwd=tmp_path)
