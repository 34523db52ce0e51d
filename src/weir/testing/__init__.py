"""Tools for tests of users' pipelines and of weir itself.

`contract` holds the promises every store must keep, `fault_store` a store that fails on command,
`faulty` tables on such stores, and `seaweed` starts a real S3 server. The simulator is not shipped:
it lives beside the tests.
"""
