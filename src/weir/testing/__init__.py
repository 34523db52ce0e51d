"""What users test their own pipelines with, and we ours.

`contract` holds the promises every store must keep, `fault_store` a store that fails on command,
`faulty` tables on such stores, and `seaweed` starts a real S3 server. The simulator is not shipped:
it lives beside the tests.
"""
