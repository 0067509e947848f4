"""Where work runs: in this process, or in a pool of processes with one thread each."""
