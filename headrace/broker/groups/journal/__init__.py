"""The journal `__consumer_offsets`: its records as bytes, and groups built from them."""
