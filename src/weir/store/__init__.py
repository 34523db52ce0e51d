"""Object stores: URIs, put-if-absent, compare-and-swap, list, retry, the store's clock.

Bytes have no meaning here.
"""
