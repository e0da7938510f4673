"""What benchmarks of several subjects share: how to measure and keep a result, models, processes, rows of claims.

It measures nothing itself and knows no subject.
"""
