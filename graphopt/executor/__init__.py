"""The profiling executor: runs a model repeatedly, and specializes it at run time for the profiled inputs."""
