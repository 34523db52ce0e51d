"""weir.upkeep"""
