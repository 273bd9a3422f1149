"""Chat templates: what the model reads of the messages."""
import json
import subprocess

import pytest

from conftest import BINARY

from .client import CHAT, alive, chat, complete, post, refused, user
from .models import CHATML, END_OF_TURN, TESTS, TURN, tiny_model
from .registry import case, reported_body

RENDERINGS = json.loads((TESTS / "data" / "cases" / "templates.json").read_text())
DIRECT = CHATML  # prints message.content as it is
TOOLS = """{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}
{% set given = call.function.arguments %}{{ call.function.name }} {{ given if given is string else given | tojson }}
{% endfor %};{% endfor %}"""


def asks(server, body):
    """What tells one prompt from another: its length, and the bits of the logits after it."""
    reply = chat(server, body | {"max_tokens": 1, "logprobs": True, "top_logprobs": 5, "temperature": 0})
    top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return reply["usage"]["prompt_tokens"], [entry["logprob"] for entry in top]


def asks_raw(server, prompt):
    reply = complete(server, {"prompt": prompt, "max_tokens": 1, "logprobs": 5, "temperature": 0})
    values = reply["choices"][0]["logprobs"]["top_logprobs"][0].values()
    return reply["usage"]["prompt_tokens"], sorted(values, reverse=True)


def renders(server, body, expected):
    """Whether a chat's prompt is `expected`. (The legacy object may show fewer of the five values, never others.)"""
    tokens, values = asks(server, body)
    raw_tokens, raw_values = asks_raw(server, expected)
    return tokens == raw_tokens and values[0] == raw_values[0] and set(raw_values) <= set(values)


@pytest.fixture(scope="module")
def with_template(servers, tmp_path_factory):
    def start(name, template):
        folder = tmp_path_factory.getbasetemp() / f"templates/{name}"
        if not folder.exists():
            tiny_model(folder, template=template)
        return servers(model=str(folder))

    return start


@case("BC-064")
def test_null_content_is_nothing(with_template):
    server = with_template("direct", DIRECT)
    body = reported_body("BC-064")
    empty = json.loads(json.dumps(body))
    empty["messages"][1]["content"] = ""
    assert asks(server, body) == asks(server, empty)
    expected = "".join(f"{TURN}{role}\n{content}{END_OF_TURN}\n" for role, content in
                       (("user", "lamp"), ("assistant", ""), ("tool", "done"))) + f"{TURN}assistant\n"
    assert renders(server, body, expected)
    assert not renders(server, body, expected.replace("assistant\n" + END_OF_TURN, "assistant\nNone" + END_OF_TURN))
    del empty["messages"][1]["content"]
    assert asks(server, empty) == asks(server, body), "absent is like null"


@case("BC-065")
def test_a_tool_call_beside_null_content_reaches_the_template(with_template):
    server = with_template("tools", TOOLS)
    body = reported_body("BC-065")
    forms = [f"user:lamp;assistant:set_lamp {arguments}\n;tool:done;" for arguments in
             ('{"room":"cellar"}', '{"room": "cellar"}')]
    assert any(renders(server, body, form) for form in forms)
    longer = json.loads(json.dumps(body))
    longer["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"room":"cellar and attic and porch"}'
    assert asks(server, longer)[0] > asks(server, body)[0]


@case("BC-067")
def test_text_parts_are_a_string_to_the_template(with_template):
    server = with_template("direct", DIRECT)
    expected = f"{TURN}user\nhello{END_OF_TURN}\n{TURN}assistant\n"
    body = reported_body("BC-067")
    assert asks(server, body) == asks(server, {"messages": user("hello")})
    assert renders(server, body, expected) and not renders(server, body, expected.replace("hello", "hallo"))


@case("BC-070")
def test_what_a_template_refuses_is_the_clients_fault(with_template):
    template = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate, said the template') }}{% endif %}{{ m.content }}{% endfor %}"""
    server = with_template("alternating", template)
    body = reported_body("BC-070")
    for stream in (False, True):
        message = refused(post(server, CHAT, body | {"stream": stream}))
        assert "roles must alternate, said the template" in message
    for odd in ({"role": "wizard"}, {"role": 5}, {"role": None}, {}):
        for running in (server, with_template("direct", DIRECT)):
            refused(post(running, CHAT, {"messages": [odd | {"content": "a"}]}), param="messages[0]")
    alive(server)


@pytest.mark.parametrize("name", RENDERINGS["templates"])
@case("BC-071")
def test_templates_render_as_the_reference_does(with_template, name):
    server = with_template(name, RENDERINGS["templates"][name])
    for messages, expected in zip(RENDERINGS["chats"], RENDERINGS["rendered"][name]):
        if expected is None:
            refused(post(server, CHAT, {"messages": messages}))
        else:
            assert renders(server, {"messages": messages}, expected), f"not rendered as {expected!r}"


@case("BC-071")
def test_what_the_template_engine_lacks_is_named_at_start(tmp_path):
    for number, (line, named) in enumerate([("{% autoescape true %}x{% endautoescape %}", "autoescape"),
                                            ("{{ messages | no_such_filter }}", "no_such_filter"),
                                            ("{% for m in messages %}", ""), ("{{ messages[ }}", "")]):
        model = tiny_model(tmp_path / str(number), template=f"first line\nsecond\n{line}\n")
        run = subprocess.run([BINARY, "serve", "--model", model, "--port", "0"], capture_output=True, text=True, timeout=30)
        assert run.returncode > 0, "a refusal, no signal"
        assert named in run.stderr and "line 3" in run.stderr, run.stderr


@case("BC-073")
def test_generation_tags_are_passed_over(with_template):
    template = """{% for m in messages %}
{% if m.role == 'assistant' %}
 begin OPEN {{ m.content }} CLOSE end
{% else %}
{{ m.content }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}go{% endif %}"""
    body = {"messages": [*user("Hi"), {"role": "assistant", "content": "there"}, *user("again")]}
    for name, opening, closing, turn in (
            ("plain", "{% generation %}", "{% endgeneration %}", " begin  there  end"),
            ("dashes", "{%- generation -%}", "{%- endgeneration -%}", " beginthereend")):
        server = with_template(f"tags-{name}", template.replace("OPEN", opening).replace("CLOSE", closing))
        assert renders(server, body, f"Hi\n{turn}\nagain\ngo"), name
