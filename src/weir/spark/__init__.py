"""weir.spark"""
