"""The SDK's engines: they run the pure machines of `_core` over the connections of `_io`."""
