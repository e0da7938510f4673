"""A job whose batch size may change; what it reads, and by what rule it changes, is an argument."""

import argparse
import random
import time

import torch
import torch.nn.functional as F

import isoscale


class Noisy(torch.utils.data.Dataset):
    """Samples that depend on whose random streams they were read under."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.01 * torch.randn(6) + 0.01 * random.random(), self.y[i]


class Own(torch.utils.data.Sampler):
    """Draws from the worker's own streams."""

    def __init__(self, rank, n, size):
        self.mine = list(range(rank, size - size % n, n))

    def __iter__(self):
        order = torch.randperm(len(self.mine)).tolist()
        return iter([self.mine[i] for i in order])

    def __len__(self):
        return len(self.mine)


def make_stream(job, args, live):
    data = Noisy(args.samples)
    rows = [[f"{i}"] for i in range(args.samples)]

    class Source:
        num_partitions, identity = 7, f"noisy {args.samples}"

        def open(self, partition, position):
            return Reader(partition, position or 0)

        def decode(self, stored):
            return stored

        def label(self, partition):
            return str(partition)

    class Reader:
        def __init__(self, partition, position):
            self.mine, self.position = range(partition, len(rows), 7), position

        def read(self):
            before, self.position = self.position, min(len(self.mine), self.position + 3)
            return before, [self.mine[i] for i in range(before, self.position)]

        def close(self):
            pass

    return job.stream(
        Source(),
        batch_size=4,
        tail=args.tail,
        shuffle_buffer=args.buffer,
        num_workers=args.loaders,
        transform=lambda i: data[i],
        **live,
    )


def train(job):
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=101)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rule", default="linear")
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--sampler", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--tail", default="partial")
    parser.add_argument("--buffer", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--fail-at", type=int, default=0, help="the rule raises for this size, on one executor")
    parser.add_argument("--apart", type=int, default=0, help="after so many steps stock DDP computes something else")
    args = parser.parse_args()
    model = job.model(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch))
    live = {"batch_sizes": (2, 4, 8), "batch_rule": args.rule}
    if args.rule == "own":
        del live["batch_rule"]
    if args.stream:
        loader = make_stream(job, args, live)
    else:
        options = {"num_workers": args.loaders, "persistent_workers": args.persistent, "drop_last": args.drop_last}
        if args.sampler:
            options["sampler"] = lambda rank, n: Own(rank, n, args.samples)
        loader = job.loader(Noisy(args.samples), batch_size=4, shuffle=not args.sampler, **options, **live)
    if args.rule == "own":

        def change(old, new):
            for group in optimizer.param_groups:
                group["lr"] *= (new / old) ** 0.75
            with torch.no_grad():
                model[0].bias.add_(torch.rand(()) * 0.001)  # the job-wide stream
            job.state["changes"] = job.state.get("changes", 0) + 1
            if new == args.fail_at and job.is_main:
                raise RuntimeError(f"no rule for {new}")

        job.on_batch_change(change)
    for _ in job.epochs(args.epochs):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                if args.apart and job.step >= args.apart and job.out.name == "reference":
                    loss = loss * 1.001
                loss.backward()
                step.log(loss=loss, rows=len(x))
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(args.step_s)
        schedule.step()
        job.log(samples=job.samples, batch=loader.batch_size)


if __name__ == "__main__":
    isoscale.run(train)
