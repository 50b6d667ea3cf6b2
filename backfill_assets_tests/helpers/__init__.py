"""What several tests need: pipelines, models, servers, invented ledgers and landings."""
