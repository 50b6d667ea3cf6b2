"""Drills: mock outages on a deployment of one's own, played against the clock and scored."""
