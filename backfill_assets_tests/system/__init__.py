"""Tests of whole deployments: processes that are killed, nights, commands, servers, histories."""
