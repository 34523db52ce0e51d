"""weir.format"""
