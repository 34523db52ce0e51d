"""weir.shard"""
