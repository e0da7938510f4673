"""A classifier with a plain Accelerate loop: `torchrun --nproc_per_node 2 accelerate_before.py`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, WINDOW = 3, 4, 2


def points(count, seed):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=WINDOW)
    set_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(points(96, 1), batch_size=BATCH, shuffle=True)
    validation = DataLoader(points(40, 2), batch_size=BATCH)
    model, optimizer, loader, validation = accelerator.prepare(model, optimizer, loader, validation)
    for epoch in range(EPOCHS):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        correct = seen = 0
        for x, y in validation:
            with torch.no_grad():
                right = model(x).argmax(1) == y
            right = accelerator.gather_for_metrics(right)
            correct, seen = correct + int(right.sum()), seen + len(right)
        accelerator.print(f"epoch {epoch}: accuracy {correct / seen:.3f}")


if __name__ == "__main__":
    main()
