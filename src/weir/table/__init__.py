"""weir.table"""
