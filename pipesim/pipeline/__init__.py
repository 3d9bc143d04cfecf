"""What is run: stages, devices and links, and the layers, models and splits they come from."""
