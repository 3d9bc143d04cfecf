"""Ops, checks, errors, texts, types and safe files: all that needs no pipeline."""
