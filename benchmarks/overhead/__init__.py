"""What isoscale costs over plain PyTorch while nothing scales: time of a step, of a switch, memory, import."""
