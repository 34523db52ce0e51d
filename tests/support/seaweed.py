"""The suite's S3 server; its class is part of weir, since demos and benchmarks use it too."""

from weir.testing.seaweed import SeaweedServer

__all__ = ["SeaweedServer"]
