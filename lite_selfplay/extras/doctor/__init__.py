"""What this machine is, and what would run on it (`machine`)."""
