"""weir.log"""
