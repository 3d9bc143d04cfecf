"""Pages with sliders for what a sweep varies."""
