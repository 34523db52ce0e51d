"""The suite's S3 server; the class is shipped, because demos and benchmarks use it too."""

from weir.testing.seaweed import SeaweedServer

__all__ = ["SeaweedServer"]
