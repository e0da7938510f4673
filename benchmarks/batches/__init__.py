"""What live batch sizes and the noise scale cost, and whether a job trains as well with sizes that change."""
