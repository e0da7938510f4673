"""From gradients of single turns to the average over all logical workers: buckets, orders of summation, the exchange.

`exchange` is the seam to other executors; here nobody sends a message.
"""
