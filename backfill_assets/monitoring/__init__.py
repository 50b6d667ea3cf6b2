"""Day states, incidents, alerts, metrics, the next runs, and the lateness page."""
