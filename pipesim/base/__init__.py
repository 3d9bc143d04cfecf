"""Words, checks, texts and safe files: what knows nothing of pipelines."""
