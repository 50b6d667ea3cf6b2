"""Drills: mock outages on a deployment, played against the clock and scored."""
