"""The charts of a run as picture files, drawn by matplotlib: `drawn`."""
