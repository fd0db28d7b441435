"""Error codes agree with kio's, which are generated from Kafka's source."""

import pickle

from kio.schema.errors import ErrorCode as KioErrorCode

from headrace.protocol.errors import ErrorCode, KafkaError


def test_names_numbers_and_retriability_agree_with_kio():
    assert {code.name.lower(): (code.value, code.retriable) for code in ErrorCode} == {
        code.name: (int(code), code.retriable) for code in KioErrorCode
    }


def test_a_kafka_error_says_code_and_message():
    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'orders'")
    assert str(error) == "UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'orders'"
    assert str(KafkaError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    assert error.retriable
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message) == (error.code, error.message)
