"""What answers and exceptions of SQS mean, in every spelling."""

import subprocess
import sys
from typing import Any

import pytest
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from relays.publishers import Confirmed, Paused, Rejected, Retry
from relays.publishers.sqs_answers import Fault, Kind, classify, read_answer
from relays.publishers.sqs_packing import Call, Entry, Queue

CALL = Call(Queue("orders", "url", "region"), [Entry(position, {}, 1, f"md5-{position}") for position in (4, 7)])


def client_error(code: str, status: int = 400, message: str = "because", **details: str) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message} | details,
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "SendMessageBatch")


def taken(position: int, md5: str | None = None) -> dict[str, Any]:
    return {"Id": str(position), "MessageId": "m", "MD5OfMessageBody": md5 or f"md5-{position}"}


def fate(code: str, *, sender_fault: Any) -> Any:
    """The outcome of an entry that failed so, beside a successful one."""
    item = {"Id": "7", "Code": code, "Message": "because", "SenderFault": sender_fault}
    outcomes = read_answer(CALL, {"Successful": [taken(4)], "Failed": [item]})
    assert isinstance(outcomes, dict)
    assert outcomes.pop(4) == Confirmed()
    assert outcomes.keys() == {7}
    return outcomes[7]


class TestClassify:
    @pytest.mark.parametrize(
        "code",
        [
            "RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled", "KMS.ThrottlingException",
            "RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "OverLimit", "InternalError",
            "InternalFailure", "ServiceUnavailable", "ExpiredToken", "ExpiredTokenException", "RequestTimeout",
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("status", [400, 403])
    def test_throttling_and_trouble_of_sqs_are_an_outage(self, code: str, status: int) -> None:
        assert classify(client_error(code, status)).kind is Kind.AWAY

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_so_is_such_a_status_whatever_the_code(self, status: int) -> None:
        for code in ("AccessDenied", "InvalidParameterValue", str(status), "Unknown"):
            assert classify(client_error(code, status)).kind is Kind.AWAY

    @pytest.mark.parametrize(
        "error",
        [
            exceptions.EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
            exceptions.ConnectTimeoutError(endpoint_url="http://127.0.0.1:1"),
            exceptions.ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
            exceptions.ConnectionClosedError(endpoint_url="http://127.0.0.1:1"),
            exceptions.ProxyConnectionError(proxy_url="http://127.0.0.1:1"),
            exceptions.HTTPClientError(error="broken"),
            exceptions.CredentialRetrievalError(provider="role", error_msg="later"),
            exceptions.TokenRetrievalError(provider="sso", error_msg="later"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_no_answer_is_an_outage(self, error: BotoCoreError) -> None:
        assert classify(error) == (Kind.AWAY, str(error), error)

    @pytest.mark.parametrize(
        ("code", "setting"),
        [
            ("InvalidClientTokenId", "AWS_ACCESS_KEY_ID"), ("UnrecognizedClientException", "AWS_ACCESS_KEY_ID"),
            ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"), ("InvalidSignatureException", "AWS_SECRET_ACCESS_KEY"),
            ("IncompleteSignatureException", "AWS_SECRET_ACCESS_KEY"), ("RequestTimeTooSkewed", "clock"),
            ("MissingAuthenticationTokenException", "AWS_ACCESS_KEY_ID"), ("OptInRequired", "AWS_REGION"),
            ("404", "AWS_ENDPOINT_URL"), ("Unknown", "AWS_ENDPOINT_URL"), ("", "AWS_ENDPOINT_URL"),
        ],
    )  # fmt: skip
    def test_what_a_setting_has_to_mend_names_it(self, code: str, setting: str) -> None:
        fault = classify(client_error(code, 403))
        assert fault.kind is Kind.REFUSED
        assert setting in fault.reason

    @pytest.mark.parametrize(
        ("error", "setting"),
        [
            (exceptions.NoRegionError(), "AWS_REGION"),
            (exceptions.InvalidRegionError(region_name="a b"), "AWS_REGION"),
            (exceptions.NoCredentialsError(), "AWS_ACCESS_KEY_ID"),
            (exceptions.PartialCredentialsError(provider="env", cred_var="x"), "AWS_SECRET_ACCESS_KEY"),
            (exceptions.ProfileNotFound(profile="p"), "AWS_PROFILE"),
            (exceptions.SSLError(endpoint_url="https://127.0.0.1:1", error="x"), "AWS_CA_BUNDLE"),
            (exceptions.UnauthorizedSSOTokenError(), "aws sso login"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_so_does_what_boto3_refuses_itself(self, error: BotoCoreError, setting: str) -> None:
        fault = classify(error)
        assert fault.kind is Kind.REFUSED
        assert setting in fault.reason

    def test_the_text_of_a_refused_signature_is_not_repeated(self) -> None:
        fault = classify(client_error("SignatureDoesNotMatch", 403, "x-amz-security-token:s3cret"))
        assert "s3cret" not in fault.reason
        assert fault.cause is None

    @pytest.mark.parametrize(
        "code",
        [
            "AccessDenied", "AccessDeniedException", "InvalidAddress", "UnsupportedOperation", "NeverHeardOf",
            "KMS.AccessDeniedException", "KmsAccessDenied", "KmsDisabled", "KMS.NotFoundException", "KmsInvalidState",
            "KmsInvalidKeyUsage", "KmsOptInRequired",
        ],
    )  # fmt: skip
    def test_what_concerns_a_queue_is_the_queues_and_so_is_what_nobody_knows(self, code: str) -> None:
        assert classify(client_error(code, 403)).kind is Kind.QUEUE

    def test_a_missing_queue_reads_the_same_in_both_spellings(self) -> None:
        new = classify(client_error("QueueDoesNotExist"))
        old = classify(client_error("AWS.SimpleQueueService.NonExistentQueue", QueryErrorCode="QueueDoesNotExist"))
        assert new.kind is old.kind is Kind.MISSING
        assert new.reason == old.reason
        assert "does not exist" in new.reason

    @pytest.mark.parametrize(
        "code", ["BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", "InvalidMessageContents",
                 "InvalidParameterValue", "MissingParameter", "InvalidBatchEntryId"],
    )  # fmt: skip
    def test_what_concerns_a_message_is_the_messages(self, code: str) -> None:
        assert classify(client_error(code)).kind is Kind.MESSAGE

    def test_so_is_what_boto3_finds_wrong_with_the_parameters(self) -> None:
        assert classify(exceptions.ParamValidationError(report="int is no str")).kind is Kind.MESSAGE

    def test_reasons_are_one_short_line_without_credentials(self) -> None:
        endpoint = "http://user:s3cret@127.0.0.1:1"
        reason = classify(exceptions.EndpointConnectionError(endpoint_url=endpoint)).reason
        assert "s3cret" not in reason
        assert "127.0.0.1:1" in reason
        long = classify(client_error("Odd", message="line\n" * 1000)).reason
        assert "\n" not in long
        assert len(long) <= 500


class TestReadAnswer:
    def test_confirmed_is_what_the_answer_names_as_successful(self) -> None:
        assert read_answer(CALL, {"Successful": [taken(7), taken(4)]}) == {4: Confirmed(), 7: Confirmed()}

    def test_what_the_answer_does_not_mention_is_retried(self) -> None:
        outcomes = read_answer(CALL, {"Successful": [taken(4)], "Failed": []})
        assert outcomes == {4: Confirmed(), 7: Retry("SQS's answer doesn't mention the message")}

    @pytest.mark.parametrize("answer", [{}, {"message": "<html>"}, {"ResponseMetadata": {"HTTPStatusCode": 200}}])
    def test_an_answer_without_either_list_confirms_nothing(self, answer: dict[str, Any]) -> None:
        fault = read_answer(CALL, answer)
        assert isinstance(fault, Fault)
        assert fault.kind is Kind.AWAY

    def test_another_md5_is_no_confirmation(self) -> None:
        outcomes = read_answer(CALL, {"Successful": [taken(4), taken(7, md5="other")]})
        assert isinstance(outcomes, dict)
        assert outcomes[4] == Confirmed()
        assert isinstance(outcomes[7], Retry)
        assert "MD5" in outcomes[7].reason

    @pytest.mark.parametrize("sender_fault", [True, False])
    @pytest.mark.parametrize(
        "code", ["ThrottlingException", "RequestThrottled", "KMS.ThrottlingException", "KmsThrottled", "InternalError",
                 "ServiceUnavailable"],
    )  # fmt: skip
    def test_a_throttled_entry_is_retried_whoever_is_blamed(self, code: str, sender_fault: bool) -> None:
        assert fate(code, sender_fault=sender_fault) == Retry(f"{code}: because")

    @pytest.mark.parametrize("sender_fault", [False, None])
    def test_a_fault_that_is_not_the_senders_is_retried(self, sender_fault: Any) -> None:
        assert fate("Whatever", sender_fault=sender_fault) == Retry("Whatever: because")

    @pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue", "Whatever"])
    def test_the_senders_fault_is_rejected(self, code: str) -> None:
        assert fate(code, sender_fault=True) == Rejected(f"{code}: because")

    @pytest.mark.parametrize("code", ["AccessDenied", "KMS.DisabledException", "KmsNotFound", "InvalidClientTokenId"])
    def test_what_is_not_the_messages_fault_pauses_the_queue(self, code: str) -> None:
        assert fate(code, sender_fault=True) == Paused(f"{code}: because")


def test_every_error_that_the_service_model_names_is_known() -> None:
    """None of them may be taken for a message's fault by accident: this lists which are."""
    import botocore.session

    model = botocore.session.get_session().get_service_model("sqs")
    shapes = model.operation_model("SendMessageBatch").error_shapes
    kinds = {shape.name: classify(client_error(shape.name)).kind for shape in shapes}
    messages = {name for name, kind in kinds.items() if kind is Kind.MESSAGE}
    assert messages == {
        "BatchEntryIdsNotDistinct",
        "BatchRequestTooLong",
        "EmptyBatchRequest",
        "InvalidBatchEntryId",
        "TooManyEntriesInBatchRequest",
    }
    assert {name for name, kind in kinds.items() if kind is Kind.AWAY} == {"KmsThrottled", "RequestThrottled"}
    assert {name for name, kind in kinds.items() if kind is Kind.REFUSED} == {"InvalidSecurity"}


def test_the_other_publishers_need_no_boto3() -> None:
    code = "import sys; import relays.publishers, relays.publishers.memory; assert 'boto3' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
