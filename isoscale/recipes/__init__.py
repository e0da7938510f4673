"""Complete training scripts on the public API only. Each runs alone, elastically and under `verify`."""
