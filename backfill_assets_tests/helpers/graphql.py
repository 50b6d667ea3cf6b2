"""Asking a running Dagster webserver, by GraphQL."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen


class RefusedQueryError(Exception):
    """The server answers with errors; the message is the first of them."""


def ask(url: str, query: str, **variables: Any) -> Any:
    """The one field that a query asks for.

    Raises:
        RefusedQueryError: the server answers with errors.
        OSError: it does not answer.
    """
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    # Whatever is asked for comes within so many seconds, also beside somebody else's Spark.
    with urlopen(request, timeout=120) as response:
        answer = json.load(response)
    if answer.get("errors"):
        raise RefusedQueryError(answer["errors"][0]["message"])
    (value,) = answer["data"].values()
    return value
