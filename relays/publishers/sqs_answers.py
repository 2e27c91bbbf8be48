"""What an answer of SQS, or an exception of boto3, means for the messages of a call. Pure.

The codes are those of the SQS API reference and of the errors common to all AWS actions, in every spelling: of the
JSON protocol (`KmsThrottled`), of the older query protocol (`KMS.ThrottlingException`,
`AWS.SimpleQueueService.NonExistentQueue`) and as exceptions of botocore.
"""

import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from relays.publishers import Confirmed, Outcome, Paused, Rejected, Retry
from relays.publishers.sqs_packing import Call, Entry

__all__ = ["ACCESS_DENIED", "NOT_SQS", "Fault", "Kind", "classify", "printable", "read_answer"]


class Kind(enum.Enum):
    """Whose fault it is that a call failed."""

    AWAY = "SQS can't be reached, throttles or has a problem of its own: may be over in a moment"
    REFUSED = "credentials, region or endpoint are wrong: somebody has to change a setting"
    MISSING = "there is no such queue"
    QUEUE = "this one queue is closed to us or can't use its encryption key"
    MESSAGE = "one of the messages of the call is at fault"


class Fault(NamedTuple):
    """Why a whole call failed."""

    kind: Kind
    reason: str
    cause: Exception | None = None


NOT_SQS = "the answer is none that SQS gives: see that AWS_ENDPOINT_URL points at SQS and no proxy answers for it"

THROTTLED = re.compile(r"throttl|too ?many ?requests|slow ?down|limit ?exceeded|overlimit", re.IGNORECASE)
KMS = re.compile(r"kms", re.IGNORECASE)

TEMPORARY = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "PriorRequestNotComplete",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}

# The service's own text and the exception with it are left out of these: they may quote the signed request, session
# token included.
REFUSED = {
    "AuthFailure": "the AWS credentials are not valid",
    "IncompleteSignature": "the request was not signed as AWS expects: see AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "InvalidAccessKeyId": "AWS doesn't know the access key: see AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "InvalidClientTokenId": "AWS doesn't know the access key: see AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "InvalidSecurity": "the request was not made over HTTPS or not signed: see AWS_ENDPOINT_URL",
    "InvalidSignature": "the secret doesn't belong to the access key, or this machine's clock is off: "
    "see AWS_SECRET_ACCESS_KEY",
    "MissingAuthenticationToken": "the request carried no credentials: see AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "OptInRequired": "the AWS account is not subscribed to SQS in this region: see AWS_REGION",
    "RequestExpired": "the request counts as expired: set this machine's clock",
    "RequestTimeTooSkewed": "the request's time is too far from AWS's: set this machine's clock",
    "SignatureDoesNotMatch": "the secret doesn't belong to the access key, or this machine's clock is off: "
    "see AWS_SECRET_ACCESS_KEY",
    "UnrecognizedClient": "AWS doesn't know the access key: see AWS_ACCESS_KEY_ID or AWS_PROFILE",
}

REFUSED_LOCALLY: dict[type[BotoCoreError], str] = {
    exceptions.NoRegionError: "no AWS region is set: set AWS_REGION or AWS_PROFILE, or give the queue as a URL",
    exceptions.InvalidRegionError: "this is no AWS region: see AWS_REGION",
    exceptions.NoCredentialsError: "no AWS credentials are found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "or AWS_PROFILE, or run under a role",
    exceptions.PartialCredentialsError: "the AWS credentials are incomplete: set both AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY",
    exceptions.UnknownCredentialError: "the AWS credentials are misconfigured: see AWS_PROFILE",
    exceptions.ProfileNotFound: "see AWS_PROFILE",
    exceptions.ConfigNotFound: "see AWS_CONFIG_FILE",
    exceptions.ConfigParseError: "see AWS_CONFIG_FILE",
    exceptions.InvalidConfigError: "see AWS_PROFILE",
    exceptions.SSOError: "log in again with `aws sso login`",
    exceptions.SSLError: "TLS failed: see AWS_CA_BUNDLE, and whether AWS_ENDPOINT_URL is http or https",
    exceptions.EndpointProviderError: "see AWS_ENDPOINT_URL and AWS_REGION",
    exceptions.UnknownEndpointError: "see AWS_REGION",
}

ACCESS_DENIED = "access is denied: allow these credentials sqs:SendMessage, sqs:GetQueueAttributes and sqs:GetQueueUrl"
MISSING = "the queue does not exist: create it, or correct its name, account or region"

QUEUE = {
    "AccessDenied": ACCESS_DENIED,
    "InvalidAddress": "this is not the address of a queue",
    "NonExistentQueue": MISSING,
    "QueueDoesNotExist": MISSING,
    "ResourceNotFound": MISSING,
    "UnsupportedOperation": "SQS doesn't support this for the queue",
}

MESSAGE = {
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidBatchEntryId",
    "InvalidMessageContents",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "MissingParameter",
    "SerializationException",
    "TooManyEntriesInBatchRequest",
    "ValidationError",
    "ValidationException",
}


def classify(error: BotoCoreError | ClientError) -> Fault:
    """What a failed call means. A refusal of a kind not known here pauses the queue: it charges no message."""
    if isinstance(error, ClientError):
        return _classify_answer(error)
    if isinstance(error, exceptions.ParamValidationError):
        return Fault(Kind.MESSAGE, printable(str(error)), error)
    for refused, advice in REFUSED_LOCALLY.items():
        if isinstance(error, refused):
            return Fault(Kind.REFUSED, f"{advice} ({printable(str(error))})", error)
    return Fault(Kind.AWAY, printable(str(error)), error)


def read_answer(call: Call, response: Mapping[str, Any]) -> dict[int, Outcome] | Fault:
    """The outcome of each entry by its position. An entry has arrived only if the answer names it as successful."""
    if "Successful" not in response and "Failed" not in response:
        return Fault(Kind.AWAY, NOT_SQS)
    successful = {item.get("Id"): item for item in response.get("Successful") or ()}
    failed = {item.get("Id"): item for item in response.get("Failed") or ()}
    return {entry.position: _outcome(entry, successful.get(entry.id), failed.get(entry.id)) for entry in call.entries}


def _outcome(entry: Entry, successful: Mapping[str, Any] | None, failed: Mapping[str, Any] | None) -> Outcome:
    if successful is not None:
        md5 = successful.get("MD5OfMessageBody", entry.md5)
        return Confirmed() if md5 == entry.md5 else Retry(f"SQS stored another body: its MD5 is {md5}, not {entry.md5}")
    if failed is None:
        return Retry("SQS's answer doesn't mention the message")
    code = _plain(str(failed.get("Code", "")))
    reason = printable(f"{code}: {failed.get('Message') or 'no message'}")
    if THROTTLED.search(code) or code in TEMPORARY or failed.get("SenderFault") is not True:
        return Retry(reason)
    if code in QUEUE or code in REFUSED or KMS.match(code):
        return Paused(reason)
    return Rejected(reason)


def _classify_answer(error: ClientError) -> Fault:
    details = error.response.get("Error", {})
    # botocore gives the older protocol's code where the service sends it, and keeps the newer one beside it.
    codes = {_plain(str(details.get(name))) for name in ("Code", "QueryErrorCode") if details.get(name)}
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    reason = printable(f"{details.get('Code')}: {details.get('Message') or f'HTTP {status}'}")
    if status >= 500 or status == 429 or codes & TEMPORARY or any(THROTTLED.search(code) for code in codes):
        return Fault(Kind.AWAY, reason, error)
    for code in codes & REFUSED.keys():
        return Fault(Kind.REFUSED, f"{REFUSED[code]} ({code})")
    for code in codes & QUEUE.keys():
        kind = Kind.MISSING if QUEUE[code] is MISSING else Kind.QUEUE
        return Fault(kind, f"{QUEUE[code]} ({printable(details.get('Message') or code)})", error)
    if codes & MESSAGE:
        return Fault(Kind.MESSAGE, reason, error)
    # Without an error document botocore makes the HTTP status the code.
    if not codes or all(code.isdigit() or code == "Unknown" for code in codes):
        return Fault(Kind.REFUSED, f"{NOT_SQS} (HTTP {status})", error)
    return Fault(Kind.QUEUE, reason, error)


def _plain(code: str) -> str:
    """The code without what only some spellings have."""
    code = code.removeprefix("AWS.SimpleQueueService.")
    shorter = code.removesuffix("Exception")
    return shorter if shorter in REFUSED or shorter in QUEUE else code


def printable(text: str) -> str:
    """One line of bounded length, without the credentials that a URL may hold."""
    return re.sub(r"//[^/\s@]*@", "//", " ".join(text.split()))[:500]
