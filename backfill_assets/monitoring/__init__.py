"""Day states, incidents, alerts, metrics, lineage, the next runs, and the lateness page."""
