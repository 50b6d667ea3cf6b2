"""Day states, incidents, alerts, the next runs, and the lateness page."""
