"""Tools and structured output, which tandem does not have: a request for them is refused by name, before any event.

When one of them is built, its reports become cases: the checks here fail then, since they want a refusal."""
import json

import pytest

from .client import CHAT, alive, chat, post, refused, text, user
from .registry import CASES, case, not_applicable, reported_body

NO_TOOLS = "tandem has no tool calls; refused by name"
NO_SCHEMAS = "tandem has no structured output; refused by name"


def refused_both_ways(server, body, *params):
    """The same error with and without stream, as JSON and not as an event."""
    errors = []
    for stream in (False, True):
        reply = post(server, CHAT, body | {"stream": stream})
        refused(reply)
        errors.append(reply.json()["error"])
        assert errors[-1]["param"] in params and errors[-1]["param"].split(".")[0] in errors[-1]["message"], errors[-1]
    assert errors[0] == errors[1]


@not_applicable("BC-029", NO_TOOLS)
def test_truncated_tool_calls(server):
    refused_both_ways(server, reported_body("BC-029", max_tokens=7), "tools")


@not_applicable("BC-076", NO_TOOLS)
def test_last_piece_of_streamed_arguments(server):
    refused_both_ways(server, reported_body("BC-076"), "tools")


@not_applicable("BC-077", NO_TOOLS)
def test_first_piece_of_streamed_arguments(server):
    refused_both_ways(server, reported_body("BC-077"), "tools")


@case("BC-079")
def test_an_empty_list_of_tools_is_no_list(server):
    body = reported_body("BC-079", temperature=0)
    del body["tools"]
    plain = chat(server, body)
    for fields in ({"tools": []}, {"tools": None}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None},
                   {"tools": [], "tool_choice": "auto"}):
        reply = chat(server, body | fields)
        assert text(reply) == text(plain) != "" and reply["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    for fields in ({"tool_choice": "required"}, {"tools": [], "tool_choice": "required"}):
        refused_both_ways(server, body | fields, "tools", "tool_choice")


@case("BC-080")
def test_a_choice_of_no_tool_is_refused_before_the_stream(server):
    body = reported_body("BC-080")
    refused_both_ways(server, body, "tools", "tool_choice")
    bell = {"type": "function", "function": {"name": "ring_bell", "parameters": {"type": "object"}}}
    for name in ("other", "with blanks", "x" * 200):
        choice = {"type": "function", "function": {"name": name}}
        for tools in ([], [bell], [bell | {"function": {"name": name}}]):
            refused_both_ways(server, body | {"tools": tools, "tool_choice": choice}, "tools", "tool_choice")


@not_applicable("BC-082", NO_TOOLS)
def test_parallel_tool_calls(server):
    refused_both_ways(server, reported_body("BC-082"), "tools")


@case("BC-083")
def test_tools_with_stream_and_logprobs_are_not_dropped_in_silence(server):
    body = reported_body("BC-083")
    refused_both_ways(server, body, "tools", "logprobs")
    refused_both_ways(server, body | {"tool_choice": "auto"}, "tools", "logprobs")
    alive(server)


def schemas_of(fault, *changes):
    """The reported schema, and it with other properties."""
    body = reported_body(fault)
    yield body
    for change in changes:
        other = json.loads(json.dumps(body))
        other["response_format"]["json_schema"]["schema"]["properties"] = change
        yield other


@not_applicable("BC-085", NO_SCHEMAS)
def test_bounds_of_integers(server):
    bounds = ({"maximum": 1e30}, {"minimum": -9223372036854775808}, {"exclusiveMinimum": 0.5})
    for body in schemas_of("BC-085", *({"p": {"type": "integer"} | bound} for bound in bounds)):
        refused_both_ways(server, body, "response_format")
    alive(server)


@not_applicable("BC-086", NO_SCHEMAS)
def test_keywords_of_schemas(server):
    keywords = {"minItems": 2, "uniqueItems": True, "pattern": "^a$", "format": "date", "multipleOf": 3,
                "patternProperties": {"^a": {}}, "propertyNames": {}, "dependentRequired": {}, "if": {}, "not": {},
                "oneOf": [], "allOf": [], "$ref": "#", "const": 1, "minProperties": 1}
    for body in schemas_of("BC-086", *({"names": {keyword: value}} for keyword, value in keywords.items())):
        refused_both_ways(server, body, "response_format")


@not_applicable("BC-089", NO_SCHEMAS)
def test_bad_patterns(server):
    patterns = ("^{2}b$", "^(?<=x)y$", "[z-a]", "a{3,1}", "(", "\\", "a{1,100000}")
    for body in schemas_of("BC-089", *({"s": {"pattern": pattern}} for pattern in patterns)):
        refused_both_ways(server, body, "response_format")
    alive(server)


@not_applicable("BC-091", NO_SCHEMAS)
def test_long_bounded_strings(server):
    refused_both_ways(server, reported_body("BC-091"), "response_format")


@not_applicable("BC-092", NO_SCHEMAS)
def test_blanks_of_json_objects(server):
    refused_both_ways(server, reported_body("BC-092"), "response_format")
    assert text(chat(server, {"messages": user("Hi"), "max_tokens": 3, "response_format": {"type": "text"}}))


WITH_SCHEMA = [fault for fault, record in CASES.items() if "response_format" in (record["request"].get("body") or {})]


@pytest.mark.parametrize("fault", WITH_SCHEMA)
def test_every_reported_schema_is_refused(server, fault):
    """Also those whose reports are checked with a model made for them instead."""
    refused_both_ways(server, reported_body(fault), "response_format")
