"""How fast jobs really are: truths made from published measurements or drawn from a seed, one module per source."""
