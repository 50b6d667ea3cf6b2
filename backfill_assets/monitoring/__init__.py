"""What runs by itself and what a person is told: states, incidents, alerts, nights, the page."""
