"""What is in the folder of a drill, and the error that tells what is wrong with it."""

from __future__ import annotations

#: In the folder: what is the drill's own, and no part of the deployment.
OWN = ".drill"
#: In there: the port of the service of rates, if the drill has one, and what it counts.
RATES_PORT, CALLS_PAID, CALLS_ANSWERED = "rates-port", "calls-paid", "calls-answered"
#: The variable that has the URL of that service.
RATES_URL = "BACKFILL_DRILL_RATES_URL"
#: What the player's shell is to source.
ENVIRONMENT = "env.sh"


class DrillError(Exception):
    """A drill cannot go on like that; the message says what to do."""
