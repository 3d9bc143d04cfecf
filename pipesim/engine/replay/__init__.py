"""The replay engine: event graphs evaluated by compiled loops, bit for bit the reference."""
