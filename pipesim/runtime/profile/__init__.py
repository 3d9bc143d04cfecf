"""A PyTorch model's layers measured one by one."""
