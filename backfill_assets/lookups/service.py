"""One HTTP call of a lookup service, and its answer parsed into columns."""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyspark.sql.types as T
import requests
from urllib3.exceptions import HTTPError

from backfill_assets.tables.unpartitioned import ANSWER_CHECKS, Lookup

#: The most characters of a value that a message shows.
_SHOWN = 40


class WrongAnswerError(ValueError):
    """An answer is not valid: it is not stored, and the request is tried again."""


def parse_answer(lookup: Lookup, request: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """The columns of the answer, without those of the request.

    Raises:
        WrongAnswerError: the body is not JSON, lacks a column, breaks the model, or answers
            another request.
    """
    try:
        content = json.loads(body, parse_float=Decimal, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise WrongAnswerError("an answer that is no JSON") from error
    try:
        fields = lookup.read(content) if lookup.read else content
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WrongAnswerError(f"an answer in another form ({type(error).__name__})") from error
    if not isinstance(fields, Mapping):
        raise WrongAnswerError("an answer that is no JSON object")
    values = {
        name: _parse_column(lookup, name, fields.get(name))
        for name in lookup.columns.keys() & fields
    }
    for name in lookup.request:
        if name in values and values[name] != request[name]:
            raise WrongAnswerError(
                f"an answer to another request: {name} is {_shorten_value(fields[name])}"
            )
    answer = {n: values.get(n) for n in lookup.columns if n not in lookup.request}
    for column in lookup.struct:
        if column.name in answer and answer[column.name] is None and not column.nullable:
            raise WrongAnswerError(f"an answer without {column.name}")
    return answer


def empty_answer(lookup: Lookup) -> dict[str, None]:
    """The answer to store if the service has none: nulls."""
    return {name: None for name in lookup.columns if name not in lookup.request}


def _reject_constant(text: str) -> Any:
    raise ValueError(text)


def _parse_column(lookup: Lookup, name: str, raw_value: Any) -> Any:
    """Convert a JSON value to the column's type and check it against the model; None stays None."""
    if raw_value is None:
        return None
    column = lookup.columns[name]
    kind = column.dtype.type
    try:
        value = _PARSERS[type(kind)](raw_value, kind)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise WrongAnswerError(
            f"{name} is {_shorten_value(raw_value)}, which is no {kind.simpleString()}"
        ) from error
    for check in column.checks:
        parameter, sign, passes = ANSWER_CHECKS[check.name]
        bound = check.statistics[parameter]
        if not passes(value, bound):
            raise WrongAnswerError(
                f"{name} is {_shorten_value(raw_value)}, which is not {sign} {bound}"
            )
    return value


def _shorten_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _parse_text(raw_value: Any, _: Any) -> str:
    if not isinstance(raw_value, str):
        raise TypeError
    raw_value.encode()  # raises for a lone surrogate
    return raw_value


def _parse_long(raw_value: Any, _: Any) -> int:
    """Raises TypeError for a boolean, an `int` in Python, and for what does not fit 64 bits."""
    if type(raw_value) is not int or not -(2**63) <= raw_value < 2**63:
        raise TypeError
    return raw_value


def _parse_boolean(raw_value: Any, _: Any) -> bool:
    if not isinstance(raw_value, bool):
        raise TypeError
    return raw_value


def _parse_decimal(raw_value: Any, kind: T.DecimalType) -> Decimal:
    """A number with no more decimals than its column, so that nothing is rounded silently."""
    if isinstance(raw_value, bool) or not isinstance(raw_value, str | int | Decimal):
        raise TypeError
    if isinstance(raw_value, str) and not re.fullmatch(r"-?\d+(\.\d+)?", raw_value, re.ASCII):
        raise ValueError
    try:
        value = Decimal(raw_value)
        rounded = value.quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation as error:
        raise ValueError from error
    if rounded != value or len(rounded.as_tuple().digits) > kind.precision:
        raise ValueError
    return rounded


def _parse_double(raw_value: Any, _: Any) -> float:
    if isinstance(raw_value, bool) or not isinstance(raw_value, int | Decimal):
        raise TypeError
    value = float(raw_value)
    if not math.isfinite(value):
        raise ValueError
    return value


def _parse_date(raw_value: Any, _: Any) -> date:
    if not isinstance(raw_value, str) or not re.fullmatch(
        r"\d{4}-\d{2}-\d{2}", raw_value, re.ASCII
    ):
        raise ValueError
    return date.fromisoformat(raw_value)


def _parse_timestamp(raw_value: Any, _: Any) -> datetime:
    """In UTC; a text without an offset is taken as UTC, as in the landing."""
    if not isinstance(raw_value, str):
        raise TypeError
    value = datetime.fromisoformat(raw_value)
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


_PARSERS: Mapping[type, Callable[[Any, Any], Any]] = {
    T.StringType: _parse_text,
    T.LongType: _parse_long,
    T.BooleanType: _parse_boolean,
    T.DecimalType: _parse_decimal,
    T.DoubleType: _parse_double,
    T.DateType: _parse_date,
    T.TimestampType: _parse_timestamp,
}


#: The most bytes of an answer.
_MAX_ANSWER_BYTES = 1 << 20
_CHUNK = 1 << 16
_TOO_MANY_STATUS = 429
_REFUSED_STATUSES = (401, 403)
#: Numbers in `Retry-After` above these are times since 1970 (of 2001 and later), in seconds and in
#: milliseconds.
_EPOCH_SECONDS, _EPOCH_MILLISECONDS = 1e9, 1e12
_MOST_DIGITS = 15
_LONGEST_WAIT = 86_400.0
#: Client error statuses for which a retry may succeed, besides 429.
_TRANSIENT = (408, 425)


class ServiceError(RuntimeError):
    """A service cannot be called, as its URL or its secret is not set."""


@dataclass(frozen=True)
class Reply:
    """The result of a call.

    Attributes:
        problem: why there is no answer, without the secret.
        retry: whether another try may succeed.
        busy: whether the service says that the quota is used up.
        refused: whether the service rejects the secret.
        wait: seconds for which the service wants no call; None if it does not say.
    """

    answer: Mapping[str, Any] | None = None
    problem: str = ""
    retry: bool = True
    busy: bool = False
    refused: bool = False
    wait: float | None = None


class Service:
    """The service of a lookup, with the URL and the secret from the environment."""

    def __init__(self, lookup: Lookup) -> None:
        """Open a session, without a call.

        Raises:
            ServiceError: an environment variable of the lookup is not set, or is not a URL.
        """
        # At DEBUG level urllib3 logs the path of every request.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
        self._lookup = lookup
        self._url = _url_of(lookup)
        self._secret = _secret_of(lookup)
        self._session = requests.Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=lookup.connections, max_retries=0)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)
        self._session.auth = self._sign_request  # otherwise credentials of a .netrc would be sent

    def _sign_request(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._secret:
            name, value = self._lookup.header
            request.headers[name] = value.format(self._secret)
        return request

    def request_answer(self, request: Mapping[str, Any]) -> Reply:
        """Send the request once."""
        try:
            path = _fill_path(self._lookup, request)
        except ValueError as error:
            return Reply(problem=str(error), retry=False)
        try:
            # A redirect is not followed: it could send the secret anywhere.
            with self._session.get(
                self._url + path,
                timeout=self._lookup.timeout,
                stream=True,
                allow_redirects=False,
                headers={"Accept": "application/json"},
            ) as response:
                return self._parse_response(request, response)
        except (requests.Timeout, TimeoutError):
            return Reply(problem=f"no answer within {self._lookup.timeout:g} s")
        # The texts of these errors may contain the URL and the headers.
        except requests.ConnectionError:
            return Reply(problem="no connection")
        except (requests.RequestException, HTTPError, OSError) as error:
            return Reply(problem=f"a broken answer ({type(error).__name__})")

    def _parse_response(self, request: Mapping[str, Any], response: requests.Response) -> Reply:
        """Statuses in the lookup's `none_at` are empty answers; all others but 200 are problems."""
        status = response.status_code
        if status in self._lookup.none_at:
            return Reply(empty_answer(self._lookup))
        if status != requests.codes.ok:
            wait = _retry_after_seconds(response.headers.get("Retry-After", ""))
            return Reply(
                problem=f"HTTP {status}",
                retry=status >= 500 or status in (_TOO_MANY_STATUS, *_TRANSIENT),
                busy=status == _TOO_MANY_STATUS,
                refused=status in _REFUSED_STATUSES,
                wait=wait,
            )
        try:
            body = self._read_body(response)
            if self._secret and self._secret.encode() in body:
                raise WrongAnswerError("an answer that has the secret in it")
            return Reply(parse_answer(self._lookup, request, body))
        except WrongAnswerError as error:
            return Reply(problem=str(error))

    def _read_body(self, response: requests.Response) -> bytes:
        """The whole body, unless it takes too long or is too large."""
        deadline = time.monotonic() + self._lookup.timeout
        body = b""
        # `iter_content` waits for whole chunks: with a slow server it would pass the deadline.
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            body += chunk
            if time.monotonic() > deadline:
                raise TimeoutError
            if len(body) > _MAX_ANSWER_BYTES:
                raise WrongAnswerError(f"an answer of more than {_MAX_ANSWER_BYTES:,} bytes")
        return body

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


#: HTTP clients and servers resolve the first two within a path; without a text, the path is that of
#: a collection.
_NO_SEGMENTS = (".", "..", "")


def _fill_path(lookup: Lookup, request: Mapping[str, Any]) -> str:
    """The declared path with the values of a request.

    Raises:
        ValueError: a segment with values in it would lead to another path.
    """
    values = {name: quote(str(value), "") for name, value in request.items()}
    for segment in lookup.path.partition("?")[0].split("/"):
        if "{" in segment and segment.format(**values) in _NO_SEGMENTS:
            texts = [f"{n} is {str(request[n])!r}" for n in request if f"{{{n}}}" in segment]
            raise ValueError(
                f"{' and '.join(texts)}, which would ask another path than {lookup.path}; mend the "
                "row, or leave it out of the requests"
            )
    return lookup.path.format(**values)


def _url_of(lookup: Lookup) -> str:
    """The URL of the service.

    Raises:
        ServiceError: the variable is not set, or is not a URL.
    """
    url = os.environ.get(lookup.url, "")
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.password is not None
        or "#" in url  # what follows is not sent: all requests would be the same
    ):
        # The message does not show the value: it may have a password.
        raise ServiceError(
            f"the variable {lookup.url} is not the service's URL (http:// or https://, without a "
            "password and without #); set it where runs are started"
        )
    return url.rstrip("/")


def _secret_of(lookup: Lookup) -> str:
    """The secret of the service; empty if it needs none.

    Raises:
        ServiceError: it is not set.
    """
    if not lookup.secret:
        return ""
    secret = os.environ.get(lookup.secret, "")
    file = os.environ.get(f"{lookup.secret}_FILE", "")
    try:
        secret = secret or (Path(file).read_text() if file else "")
    except (OSError, ValueError) as error:
        raise ServiceError(
            f"the file of {lookup.secret}_FILE cannot be read ({type(error).__name__})"
        ) from None
    secret = secret.strip()
    if not secret or not secret.isprintable() or not secret.isascii():
        raise ServiceError(
            f"the variable {lookup.secret} is not the service's secret, nor {lookup.secret}_FILE "
            "the name of a file that has it; set one of them where runs are started"
        )
    return secret


def _retry_after_seconds(retry_after: str) -> float | None:
    """`Retry-After` in seconds: a number, or an HTTP date; a day at most.

    Some services give the time instead, in seconds or milliseconds since 1970.
    """
    now = datetime.now(timezone.utc)
    if retry_after.isascii() and retry_after.isdecimal():
        seconds = float(retry_after[:_MOST_DIGITS])
        if seconds > _EPOCH_MILLISECONDS:
            seconds = seconds / 1000 - now.timestamp()
        elif seconds > _EPOCH_SECONDS:
            seconds -= now.timestamp()
        return min(max(0.0, seconds), _LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return min(max(0.0, (when - now).total_seconds()), _LONGEST_WAIT)
