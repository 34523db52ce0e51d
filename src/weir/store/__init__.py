"""Object stores: URIs, put-if-absent, list, retry, the store's clock.

Bytes have no meaning here.
"""
