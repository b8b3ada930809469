"""The experiments that are shipped: YAML files alone."""
