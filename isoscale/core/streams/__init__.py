"""Random streams of one identity (Python, NumPy, torch), saved and restored at memory speed."""
