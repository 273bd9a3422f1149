"""A gRPC client that knows nothing but the address: messages come from server reflection."""
import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import wait_until


class Client:
    def __init__(self, channel):
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def method(self, service, name):
        found = self.pool.FindServiceByName(service).FindMethodByName(name)
        kind = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        answer = message_factory.GetMessageClass(found.output_type)
        return kind(
            f"/{service}/{name}", request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString
        )


@pytest.fixture(scope="module")
def client(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield Client(channel)


def chat_request(client, **more):
    messages = [client.message("tandem.v1.ChatMessage", role="user", content="Name the capital of France.")]
    sampling = client.message("tandem.v1.SamplingParams", temperature=0.0)
    fields = {"chat": client.message("tandem.v1.Chat", messages=messages), "sampling": sampling, "max_tokens": 32, **more}
    return client.message("tandem.v1.GenerateRequest", **fields)


def test_reflection_lists_the_services(client):
    assert {"tandem.v1.Inference", "grpc.health.v1.Health"} <= set(client.database.get_services())


def test_health(client):
    """By hand: gRPC's built-in health service has no descriptor for reflection to send."""
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    for service in (b"", b"tandem.v1.Inference"):
        request = b"\x0a" + bytes([len(service)]) + service if service else b""
        assert check(request, timeout=10) == b"\x08\x01", "status SERVING"


def test_generate_streams_the_answer(client, server):
    generate = client.method("tandem.v1.Inference", "Generate")
    answers = list(generate(chat_request(client), timeout=60))
    text = "".join(a.text for a in answers)
    reply = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0, "max_tokens": 32},
    ).json()
    assert text == reply["choices"][0]["message"]["content"]
    assert "Paris" in text and len(answers) > 4
    assert answers[-1].usage.completion_tokens == reply["usage"]["completion_tokens"]
    assert [a.finish.reason for a in answers if a.HasField("finish")] == [1]
    assert sum(len(a.tokens) for a in answers) == answers[-1].usage.completion_tokens


def test_token_ids_and_logprobs(client):
    request = client.message(
        "tandem.v1.GenerateRequest",
        token_ids=client.message("tandem.v1.TokenIds", ids=[504, 3575, 282, 4649, 314]),
        sampling=client.message("tandem.v1.SamplingParams", temperature=0.0),
        max_tokens=2,
        top_logprobs=2,
    )
    answers = list(client.method("tandem.v1.Inference", "Generate")(request, timeout=60))
    tokens = [t for a in answers for t in a.tokens]
    assert [t.id for t in tokens] == [7042, 30]
    assert all(t.logprob <= 0 and t.top[0].id == t.id and len(t.top) == 2 for t in tokens)


@pytest.mark.parametrize(
    "change, code",
    [
        ({"max_tokens": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"model": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"top_logprobs": 99}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_bad_requests_get_the_right_status(client, change, code):
    with pytest.raises(grpc.RpcError) as error:
        list(client.method("tandem.v1.Inference", "Generate")(chat_request(client, **change), timeout=20))
    assert error.value.code() == code
    assert error.value.details()


def test_nan_is_refused(client):
    sampling = client.message("tandem.v1.SamplingParams", temperature=float("nan"))
    with pytest.raises(grpc.RpcError) as error:
        list(client.method("tandem.v1.Inference", "Generate")(chat_request(client, sampling=sampling), timeout=20))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_cancel_and_deadline_free_the_sequence(client, server):
    generate = client.method("tandem.v1.Inference", "Generate")
    call = generate(chat_request(client, max_tokens=4000, ignore_eos=True), timeout=60)
    next(call)
    assert not server.idle()
    call.cancel()
    wait_until(server.idle, 2, "an idle server after a cancel")
    with pytest.raises(grpc.RpcError) as error:
        list(generate(chat_request(client, max_tokens=4000, ignore_eos=True), timeout=0.5))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(server.idle, 2, "an idle server after a deadline")
