"""A model cut into stages, and what flows between them."""
