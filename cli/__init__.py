"""The command line of lite-selfplay. It starts nothing heavy before a command needs it."""
