"""How executor processes are started: one seam (`seam`), and what stands behind it. Knows nothing of training."""
