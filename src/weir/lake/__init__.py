"""weir.lake"""
