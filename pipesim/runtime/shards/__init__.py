"""The parameters of stages as files, for any split."""
