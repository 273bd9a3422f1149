"""Writes tests/data/cases/templates.json for BC-071: chat templates, chats, and what Python's Jinja makes of them in the
environment in which Hugging Face's transformers renders (`python make_templates.py > FILE`; needs jinja2)."""
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = {
    "loops": """{%- set ns = namespace(seen=0, last='none') -%}
{% for m in messages %}
    {% if m.role == 'system' %}
        {% continue %}
    {% endif %}
    {% if loop.index > 5 %}
[rest left out]
        {% break %}
    {% endif %}
    {% set ns.seen = ns.seen + 1 %}
    {% set ns.last = m.role %}
{{ loop.index0 }}{{ ' first' if loop.first }}{{ ' last' if loop.last }} {{ m['role'] }}<{{ m.content }}>
    {%- if loop.previtem is defined %} after {{ loop.previtem.role }}{% endif %}
    {%- if loop.nextitem is defined %} before {{ loop.nextitem['role'] }}{% endif +%}
{% else %}
nothing
{% endfor %}
{{ ns.seen ~ '/' ~ messages | length ~ ':' ~ ns.last }}
{% if add_generation_prompt %}go{% endif %}""",
    "macros": """{% macro turn(message, mark='#', end=none) -%}
{{ mark }}{{ message.role | title }}: {{ message.content | trim }}{{ end if end is not none else '.' }}
{%- endmacro %}
{% for m in messages[::-1] %}
{{ turn(m) }}{{ turn(m, end='!') }}{{ turn(message=m, mark='-' * loop.index) }}
{% endfor %}
{{ messages[-1].content[::-1] }}|{{ messages[1:] | length }}|{{ messages[-1]['content'][1:-1:2] }}|{{ messages[0].content[-3:] }}
{% set parts = messages | map(attribute='role') | list %}
{{ parts | join(' > ') }}
{% set head %}<{{ parts | first }}>{% endset %}{{ head * 2 }}
{{ 'one' if messages | length == 1 else 'many' }}{{ 'shown' if false }}{{ strftime_now('%%') }}""",
    "strings": """{% for m in messages %}
{{ m.content.split(' ')[0] }}|{{ m.content.strip() }}|{{ m.content.startswith('He') }}|{{ m.content.endswith('?') }}
{{- '|' + m.content.title() + '|' + m.content.upper() }}|{{ m.content.lstrip('H').rstrip('.?') }}|{{ m.content.replace('e', '3') }}
{{ m.content.split('\\n') | join(' / ') }}|{{ m.content | length }}|{{ 'the' in m.content }}|{{ m.content | default('?', true) }}
{{ (m.content ~ m.role) | upper | trim }}|{{ m.content.find('e') }}|{{ m.content | replace('l', 'L') }}|{{ '%s=%d' % (m.role, 7) }}
{% endfor %}
{{ missing | default('absent') }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 1 / 4 }}""",
    "filters": """{% for m in messages | selectattr('role', 'equalto', 'user') %}
{{ m.content | tojson }}
{% endfor %}
{{ messages | rejectattr('role', 'in', ['system', 'user']) | map(attribute='content') | list | tojson(indent=2) }}
{{ {'b': [1, 2.5, none, true], 'a': {'q': "it's <b>"}} | tojson(indent=4) }}
{% for key, value in {'x': 1, 'y': [2]}.items() %}{{ key }}={{ value }};{% endfor %}
{% for key, value in {'x': 1, 'y': 'z'} | items %}{{ key }}:{{ value }},{% endfor %}
{{ messages is defined }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ messages[0].content is string }}
{{- missing is defined }}{{ missing is none }}{{ 3 is odd }}{{ messages is mapping }}{{ 4 is divisibleby 2 }}
{{ messages | map(attribute='role') | unique | list }} {{ [3, 1, 2] | sort | reverse | list }} {{ 'a,b' | upper }}
{% if messages | length > 7 %}{{ raise_exception('more than seven messages') }}{% endif %}""",
}
CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the Tower?"}],
    [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}],
    [{"role": "user", "content": "  blanks \n and lines \n"}],
    [{"role": "user", "content": "\u9f9c \u00e9t\u00e9 \U0001FAE0 na\u00efve \u03a3\u00df"}],
    [{"role": "user", "content": "\"quoted\" 'single' back\\slash <tag> & {{ x }} {% y %}"}],
    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "?"}],
    [{"role": "system", "content": "Only a system message."}],
    [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "He does."}],
    [{"role": "user" if n % 2 else "system", "content": f"number {n}"} for n in range(9)],
]


def raise_exception(message):
    raise TemplateError(message)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda text: text.replace("%%", "%")}
    rendered = {}
    for name, source in TEMPLATES.items():
        template = environment.from_string(source)
        rendered[name] = []
        for chat in CHATS:
            try:
                rendered[name].append(template.render(messages=chat, add_generation_prompt=True))
            except TemplateError:
                rendered[name].append(None)
    json.dump({"templates": TEMPLATES, "chats": CHATS, "rendered": rendered}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
