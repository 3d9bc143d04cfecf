"""Files <-> nouns and plain tables, one format a file, and nothing else."""
