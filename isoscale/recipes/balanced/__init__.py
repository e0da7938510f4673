"""Balanced Sparsity: prune every block of every row alike, and multiply with what is left at memory speed.

Yao et al., "Balanced Sparsity for Efficient DNN Inference on GPU" (AAAI 2019): rows are cut into blocks of equal width
and every block keeps the same number of weights, those of largest magnitude. Accuracy is close to that of unstructured
("random") sparsity, and work is equal everywhere, which hardware likes.

`schedule` says how many weights go when, `patterns` which ones, `pruning` does it to a model in training, `options` are
its command-line options. `packed` and `kernel` store the result and multiply with it, `layers` are built on that, and
`inference` makes a model of them.
"""
