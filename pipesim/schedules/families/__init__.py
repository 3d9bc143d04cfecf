"""The named schedules: one file a family, its record of facts beside its builder."""
