"""Before a run is started: what it would ask each role, and what a reward function would pay (`rehearsal`)."""
