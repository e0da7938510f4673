"""A run's storage where its machines share no disk: objects under a URL, and which of them count.

`names`, `records` and `counting` decide, and touch nothing; `objects` and `client` reach the storage; `courier` does so
for a process that trains. What is in a checkpoint or in frozen code is other rooms' affair.
"""
