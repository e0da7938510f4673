"""What looks into a job while it trains: traces for `verify --explain`, what models are made of for `check`.

Reads; leaves tensors, gradients and random streams as they are.
"""
