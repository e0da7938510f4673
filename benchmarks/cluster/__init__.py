"""The cluster service with real jobs: held against the simulator, and beside an inference server."""
