"""Texts posted to a webhook, by threads that a server which hangs cannot hold up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Thread
from typing import TypeVar

import requests

from backfill_assets.escaping import escape_chat

TIMEOUT = 5.0  # seconds
#: So many posts may hang; then there are no new ones until one has come back.
_POST_SLOTS = BoundedSemaphore(5)
T = TypeVar("T")


def post_text(url: str, text: str, timeout: float = TIMEOUT) -> str | None:
    """Post a text to a webhook.

    Returns:
        What went wrong, without the URL, which is a secret; none if the server took the text.
    """
    # At DEBUG level urllib3 logs the path of every request.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)

    def post_in_turn() -> int:
        # A server that drips its answer holds up a few threads, not one more with each tick.
        if not _POST_SLOTS.acquire(timeout=timeout):
            raise TimeoutError
        try:
            return send_request()
        finally:
            _POST_SLOTS.release()

    def send_request() -> int:
        # The body is not read, and a redirect not followed: it may lead anywhere.
        with requests.post(
            url,
            json={"text": escape_chat(text)},
            timeout=timeout,
            allow_redirects=False,
            stream=True,
        ) as response:
            return response.status_code

    # The timeout of requests is one between two bytes: a server that drips them never hits it.
    answer = run_in_thread(2 * timeout, post_in_turn)
    if not answer.done():
        return f"no answer within {2 * timeout:g} s"
    if error := answer.exception():
        return type(error).__name__  # its text has the URL
    code = answer.result()
    return None if 200 <= code < 300 else f"HTTP {code}"


def run_in_thread(seconds: float, work: Callable[[], T]) -> Future[T]:
    """The result of work in a thread of its own, which may not be there yet after that time."""
    future: Future[T] = Future()

    def complete_future() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            future.set_exception(error)

    # A daemon, unlike the threads of an executor: one that hangs must not keep the process alive.
    Thread(target=complete_future, daemon=True).start()
    wait([future], timeout=seconds)
    return future
