"""Writes tests/data/text/jinja_cases.json: small templates and what Python's Jinja makes of them, in the environment
that transformers renders chat templates in (needs transformers and jinja2; prints to stdout).
A case is [template, text], or [template, null] where Python raises.
"""

import copy
import json

from transformers.utils.chat_template_utils import _cached_compile_jinja_template as compile_template

VARIABLES = {
    "u": "\u00dcn\u00ef \u00df\U0001f642 ab", "s": "Hello World, hello", "m": " \t<b>x</b>\n\n y \u2028z ", "e": "",
    "n": 5, "k": -7, "z": 0, "f": 2.5, "h": 0.1, "t": True, "N": None, "l": [3, 1, 2], "L": ["b", "A", "c", "a"],
    "d": {"b": 1, "a": "x", "c": None}, "num": "42", "flt": " 3.75 ", "g": -1e20,
    "D": [{"n": "x", "v": 2, "o": {"p": 1}}, {"n": "Y", "v": 1}, {"n": "z", "v": 2, "w": [1]}],
    "nest": {"k": [1, {"q": "it's"}, [None, True, 1.0]], "s": "a\"b'c\\\n\u0007\u00e9"},
}

FILTERS = [
    "abs", "capitalize", "center(20)", "count", "default('D')", "default('D',true)", "dictsort", "dictsort(true)",
    "dictsort(by='value')", "dictsort(reverse=true)", "e", "first", "float", "float(9)", "forceescape", "indent",
    "indent(2,true)", "indent('>>',blank=true)", "int", "int(7)", "int(0,16)", "items|list", "join", "join(', ')",
    "last", "length", "list", "lower", "map('string')|list", "map('upper')|join", "map(attribute='n')|list",
    "map(attribute='o.p',default='?')|list", "max", "min", "reject('none')|list", "rejectattr('v','eq',2)|list",
    "replace('l','<L>')", "replace('','-')", "replace('l','_',2)", "reverse|list", "reverse", "round", "round(1)",
    "round(-1)", "round(1,'floor')", "round(0,'ceil')", "safe", "select|list", "select('string')|list",
    "selectattr('w','defined')|list", "selectattr('v')|map(attribute='n')|join(',')", "slice(2)|list",
    "slice(2,'f')|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='v')",
    "sort(attribute='v,n')", "string", "sum", "sum(attribute='v')", "sum(start=10)", "title", "tojson",
    "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',',':'))", "tojson(sort_keys=true)", "trim",
    "trim('He<')", "truncate(8)", "truncate(8,true,'~',0)", "unique|list", "upper", "wordcount", "batch(2)|list",
    "batch(2,'z')|list", "attr('n')", "format(1,2)", "d(1)", "bogus",
]

TESTS = [
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "boolean", "true", "false", "number",
    "integer", "float", "odd", "even", "callable", "escaped", "lower", "upper", "divisibleby(2)", "divisibleby 5",
    "eq 5", "equalto('')", "ne none", "gt 1", "lt 3", "ge 5", "le 5", "in [5,'']", "in l", "sameas none",
    "sameas true", "filter", "test", "not none", "not in l",
]

OPERATORS = [
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or",
]

METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('Hd')",
    "split()", "split(' ')", "split('l',1)", "split(none,1)", "rsplit('l',1)", "rsplit(none,1)", "rsplit()",
    "split('')", "splitlines()", "splitlines(true)", "startswith('H')", "startswith(('x','H'))", "startswith('e',1)",
    "endswith('o')", "endswith('l',0,4)", "find('l')", "find('l',5)", "rfind('l')", "index('l')", "index('Q')",
    "count('l')", "count('')", "replace('l','L')", "replace('l','L',1)", "replace('','.')", "join(['a','b'])",
    "join([1])", "format(1)", "isalpha()", "isdigit()", "isalnum()", "isspace()", "isupper()", "islower()",
    "isnumeric()", "isdecimal()", "isascii()", "zfill(12)", "ljust(22,'*')", "rjust(22)", "center(23,'-')",
    "removeprefix('Hel')", "removesuffix('llo')", "partition(' ')", "rpartition(' ')", "partition('Q')", "items()",
    "keys()", "values()", "get('a')", "get('q','dflt')", "get('q')", "append(1)", "pop()", "update({})", "copy()",
    "index(1)", "count(1)", "sort()", "nope()", "nope", "__class__", "is_integer()", "items",
]

SUBSCRIPTS = [
    "0", "-1", "1:", "::-1", ":2", "1:-1", "::2", "'a'", "'items'", "10", "-10", "n", "none", "1.0", "true", "5:1:-2",
    "-3:", "'n'", "0:100:3", "none:2", "'x':", "::0",
]

BRACE_FORMATS = [
    "{}", "{0}{0}", "{a}", "{:>5}", "{:^7}", "{:*<6}|", "{!r}", "{:05d}", "{:.2f}", "{:,}", "{:x}", "{:e}", "{:+}",
    "{:%}", "{{}}", "{", "}", "{:g}", "{0.x}", "{0[0]}", "{:s}", "{:b}", "{:>{a}}", "{!s:>8}", "{:10.3}|",
]

PERCENT_FORMATS = [
    "%s", "%r", "%d", "%5d|", "%-5d|", "%05d", "%.2f", "%x", "%X", "%o", "%e", "%g", "%%", "%c", "%i", "%+d", "% d",
    "%#x", "%10s|", "%.2s", "%q", "%", "%s%s", "%(a)s",
]

EXPRESSIONS = [
    "1e16", "1e15", "123456789012345680.0", "1e-5", "0.0001", "1.5e300", "100.0", "1/3", "2**0.5", "-0.0", "1e22",
    "5e-324", "0.1+0.2", "7//2", "-7//2", "-7%3", "7%-3", "7.5//2", "-7.5//2", "-7.5%2", "2**-1", "0**0", "2**62",
    "-2**2", "2**3**2", "not 1", "1 if 0", "(1 if 0)|default('x')", "1 if 0 else 2 if 0 else 3", "1<2<3", "1<3<2",
    "3>2>=2!=1", "1 in [1] == true", "'a' 'b'", "\"q\\n\\t\\x41\\u00e9\\101\\q\"", "[1,2,]+[3]", "(1,)+(2,)", "()",
    "(1)", "{'a':{}}", "{1:2,1.0:3,true:4}", "{(1,2):3}", "{[1]:2}", "[[],{},()]", "true+true", "1_000", "0x1F",
    "0b11", "0o17", "x.y.z", "x.y", "x['y']", "none.x", "5.x", "'%s-%s'|format('a',1)", "'a'~1~none~true~undef", "-n",
    "+n", "-s", "+t", "n.__class__", "''.__class__", "range(3)", "range(0,10,3)|list", "range(5,0,-2)|list",
    "range(100001)", "range(0)|list", "dict(a=1,b=2)", "dict([('a',1)])", "dict({'a':1},b=2)", "namespace(a=1).a",
    "namespace(a=1)['a']", "namespace(_a=1)", "namespace(a=1)", "namespace({'a':2}).a", "namespace(a=1) is mapping",
    "'abc' is in 'xabcx'", "l is sequence and l is iterable", "1 is not none", "not 1 is none", "'x' is filter",
    "'upper' is filter", "'odd' is test", "l|sum/2", "(l|sum)//2", "-1|abs", "(-1)|abs", "2 ** 3 | string",
    "n if n is defined else 'q'", "loop", "caller", "L|join(',')|upper", "D|map(attribute='n')|map('lower')|list",
    "D[0].n", "D.0.n", "D[0]['o'].p", "D|selectattr('o.p')|list|length", "d.a", "d['a']", "d|length", "s[0]", "s[-1]",
    "u[4]", "u|length", "u[::-1]", "u[2:6]", "s|list|length", "u|upper", "u|lower",
    "'\u0391\u03a3 \u039f\u0394\u039f\u03a3 \u03a3'|lower", "'\u00df'|capitalize", "'\u01c6'|title",
    "'\u0149a'|upper", "'\u0130'|lower", "'a\u00a0b\u1680c'.split()", "'\u3000x\u2003'|trim", "'it''s'",
    "'tab\\there'|tojson", "'\\u2028'|tojson", "'</script>&'|tojson", "'\\x7f\\x00'|tojson",
    "'\u00e9'|tojson(ensure_ascii=true)", "'\ud83d\ude42'|tojson(ensure_ascii=true)",
    "{1:2,none:3,true:4,1.5:5}|tojson", "{(1,2):3}|tojson", "[1.0,1e100,-0.0]|tojson",
    "[1,[2,{'a':[]}]]|tojson(indent=4)", "[]|tojson(indent=2)", "{'b':1,'a':2}|tojson(sort_keys=true,indent=1)",
    "[1,2]|tojson(indent='\\t')", "undef|tojson", "l|tojson(separators=(', ',': '))", "3.0|int", "'3.9'|int",
    "'abc'|int(5)", "'0x1f'|int(0,16)", "'1e3'|float", "'inf'|float", "'nan'|float", "'1_0'|int", "' 12 '|int",
    "'--1'|int", "none|int", "l|int", "2.5|round", "3.5|round", "2.675|round(2)", "1234|round(-2)", "1250|round(-2)",
    "1350|round(-2)", "-2.5|round", "1e300|round(2)", "0.5|round|int", "s|replace('o','0')|replace('l','1')",
    "s|wordcount", "('a'|safe)+'<'", "'<'+('a'|safe)", "('a'|safe)~'<'", "'<b>'|e", "'<b>'|e|e",
    "('<b>'|e)|replace('&','x')", "['<'|safe,'>']|join", "'%s<'|safe|format('<')", "('%s'|safe) % '<'",
    "'x'|safe|tojson", "['a'|safe]", "('ab'|safe)[0]+'<'", "('a,b'|safe).split(',')", "'{}'|safe", "l|first",
    "[]|first", "[]|last", "[]|min", "''|first", "L|sort|join", "[1,'a']|sort", "[none,1]|min", "[[2,1],[1,2]]|sort",
    "[(1,2),(1,1)]|max", "l|reverse|first", "l|map('string')|length", "l|map('string')|last", "l|select|first",
    "(l|select)[0]", "(l|select)|list|length", "l|batch(0)|list", "l|slice(0)|list", "l*2", "2*l", "l*-1", "'ab'*3",
    "'ab'*0", "l*'a'", "l[5]", "l[-3]", "l['x']", "l[1:][0]", "d[1:]", "n[1:]", "undef[1:]", "undef.x", "undef[0]",
    "undef()", "s()", "n()", "d.get('zz').x", "d.get('zz') is none", "undef is defined", "undef.x is defined",
    "d.zz is defined", "d.zz.y is defined", "d.zz", "undef==undef", "undef==none", "undef in [1]", "1 in undef",
    "'a' in none", "'a' in n", "1 in 'a'", "'a' in d", "none in [none]", "[1] in [[1]]", "{} == {}",
    "{'a':1}=={'a':1.0}", "[1,2]==(1,2)", "1==1.0", "1==true", "'1'==1", "l==[3,1,2]", "range(3)==[0,1,2]",
    "d.items()|list", "d.items()|length", "d.keys()|list", "d.values()|list|tojson", "d.items()[0]", "d.keys()",
    "d.values()", "d.items()|tojson", "d|items|list", "d|items|length", "none|items", "d|dictsort|tojson",
    "L[0]~L[1]",
]

TEMPLATES = [
   
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }};{% endfor %}",
    "{% for x in l %}{{ loop.revindex0 }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a','b') }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.changed(x>1) }}{{ loop.changed(x, 1) }};{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ loop.last }}{{ loop.nextitem }}{% endfor %}",
    "{% for x in l|select %}{{ loop.length }}{{ loop.revindex }}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in l %}{% break %}{% else %}E{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}E{% endfor %}",
    "{% for x in l %}{% if x==1 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in l %}{% if x==1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for k,v in d.items() %}{{ k }}={{ v }},{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in u %}{{ c }}.{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for x in undef %}x{% else %}none{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for a,b in [[1,2],[3,4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a,b in [[1]] %}{% endfor %}",
    "{% for a,b in ['xy'] %}{{a}}{{b}}{% endfor %}", "{% for a,(b,c) in [[1,[2,3]]] %}{{a}}{{b}}{{c}}{% endfor %}",
    "{% set x=1 %}{% for i in l %}{% set x=i %}{{x}}{% endfor %}{{x}}",
    "{% set ns=namespace(x=0) %}{% for i in l %}{% set ns.x=ns.x+i %}{% endfor %}{{ns.x}}",
    "{% set a,b=1,2 %}{{a}}{{b}}", "{% set a=1,2 %}{{a}}", "{% set a,b=[1] %}",
    "{% set x %}a{{n}}b{% endset %}[{{x}}]", "{% set x|upper|trim %} abc {% endset %}[{{x}}]", "{% set ns.x=1 %}",
    "{% set d.x=1 %}", "{% if n %}a{% elif t %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif t %}b{% else %}c{% endif %}", "{% if z %}a{% elif z %}b{% else %}c{% endif %}",
    "{% macro m(a,b=2,c=b) %}{{a}}{{b}}{{c}}{% endmacro %}{{m(1)}}|{{m(1,3)}}|{{m(b=5,a=4)}}|{{m()}}",
    "{% macro m(a) %}{{a}}{{varargs}}{{kwargs}}{% endmacro %}{{m(1,2,3,x=4)}}",
    "{% macro m(a) %}{{a}}{% endmacro %}{{m(1,2)}}", "{% macro m(a) %}{{a}}{% endmacro %}{{m(b=2)}}",
    "{% macro m() %}[{{caller()}}]{% endmacro %}{% call m() %}x{{n}}{% endcall %}",
    "{% macro m() %}[{{caller(1,2)}}]{% endmacro %}{% call(a,b=9) m() %}{{a}}{{b}}{% endcall %}",
    "{% macro m() %}{{caller}}{% endmacro %}{{m()}}",
    "{% macro f(n) %}{{n}}{% if n>0 %}{{f(n-1)}}{% endif %}{% endmacro %}{{f(5)}}",
    "{{ f(1) }}{% macro f(n) %}{% endmacro %}",
    "{% set q=1 %}{% macro f() %}{{q}}{% set q=5 %}{{q}}{% endmacro %}{{f()}}{% set q=2 %}{{f()}}{{q}}",
    "{% macro f() %}{{zz}}{% endmacro %}{% set zz=3 %}{{f()}}",
    "{% for i in l %}{% macro f() %}{{i}}{% endmacro %}{{f()}}{% endfor %}",
    "{% filter upper %}a{{s}}b{% endfilter %}", "{% filter replace('a','b')|upper %}aaa{% endfilter %}",
    "{% for x in [1,[2,[3]]] recursive %}{{x if x is number else loop(x)}}{{loop.depth}}{% endfor %}",
    "{% for x in l %}{{loop(x)}}{% endfor %}", "{% with a=1,b=2 %}{{a}}{{b}}{% endwith %}{{a}}",
    "{% with %}{% set a=3 %}{{a}}{% endwith %}{{a}}", "{% set a=1 %}{% with a=2,b=a %}{{a}}{{b}}{% endwith %}",
    "{% generation %}a{% set q=1 %}{% endgeneration %}{{q}}", "{%- generation -%} a {%- endgeneration -%} b",
    "{% raw %}{{ x }}{% y %}{% endraw %}z", "{%- raw -%} {{ x }} {%- endraw -%} z",
    "a\n{% raw %}\nb\n{% endraw %}\nc", "  {# c #}\nx", "a {#- c -#} b", "a{# {{ x }} #}b",
    "  {% if t %}\n  x\n  {% endif %}\ny\n", "  {%+ if t %}\n  x\n  {%+ endif +%}\ny\n",
    "a\n  {%- if t -%}\n  x\n  {%- endif -%}\n  b", "x  {{- n -}}  y", "x  {{ n }}\n  y", "  {{ n }}\n",
    "a\r\nb\rc\n", "a\n\n", "{{ 'a\n' }}\n", "{% if t -%}\n\n  a {%- endif %}",
    "{% for x in l -%}\n {{x}}\n{% endfor -%}\n end", "{{ n }}{% if t %}  {% endif %}  {% if t %}\nq{% endif %}",
    "\t{% set a=1 %}\n\t{{a}}", "x {% set a=1 %}\n y", "{% set a=1 %} {% set b=2 %}\n{{a}}", "{{n}} {% set b=2 %}",
    "{# a #} {# b #}\nx", "{#+ a +#}\nx", "{% if true %}{% else %}", "{% if %}", "{{ }}", "{{ n", "{% for x l %}",
    "{% endif %}", "{% bogus %}", "{{ n|bogus }}", "{% if z %}{{ n|bogus }}{% endif %}ok",
    "{% if t %}{{ n|bogus }}{% endif %}", "{{ n is bogus }}", "{% if z %}{{ n is bogus }}{% endif %}ok", "{{ (1 }}",
    "{{ [1) }}", "{{ 'abc }}", "{# x", "{% raw %}x", "{% break %}", "{% macro f() %}{% break %}{% endmacro %}",
    "{% for x in l %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}", "{% set true=1 %}",
    "{% for loop in l %}{% endfor %}", "{% set x = %}", "{{ 1 2 }}", "{{ a b }}", "{{ a.'b' }}", "{{ f(a=1,2) }}",
    "{{ f(*l,**d) }}", "{{ '%s%s%s' % (1,2,3) }}", "{{ '{}{}{}'.format(*l) }}", "{{ '{b}'.format(**d) }}",
    "{% print n %}", "{% print n, s %}", "{{ n, s }}", "{% set x = l if t else [] %}{{x}}",
    "{% set x = n is defined and n %}{{x}}", "{% if n is defined and n is not none and l|length > 2 %}y{% endif %}",
    "{% if not n == 5 %}a{% else %}b{% endif %}", "{% if 'a' in d and d['a'] is string %}y{% endif %}",
    "{% for m in D if m.v == 2 %}{{ m.n }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for m in D|selectattr('v','equalto',2)|list %}{{ m.n }}{% endfor %}",
    "{% set g = l|select %}{{ g|list }}{{ g|list }}",
    "{% set g = l|map('string') %}{% for x in g %}{{x}}{% break %}{% endfor %}{{ g|join }}",
    "{{ raise_exception('bad') }}", "{{ raise_exception() }}", "{% include 'x' %}", "{% import 'x' as y %}",
    "{% extends 'x' %}", "{% do l %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% set outer=loop %}{% for y in l %}{{ outer.index }}{{loop.index}}{% endfor %}{% endfor %}",
    "{% set m = namespace(l=[]) %}{% for x in l %}{% set m.l = m.l + [x] %}{% endfor %}{{ m.l }}",
    "{{ {'a':1}|tojson }}{% set x = {'b': [1,2]} %}{{ x.b[1] }}", "{% if l[0] > l[1] > 0 %}y{% endif %}",
    "{{ '\\n'.join(L) }}", "{{ \"a\" \n ~ \"b\" }}", "{{ 1 if n > 3 }}x", "{% set x = (1 if z) %}{{ x is defined }}",
    "{{ ((((1)))) }}", "{{ l[ n - 4 ] }}", "{{ d . a }}", "{{ s . upper ( ) }}", "{{-n-}}", "{{+n}}",
    "{{ n|string|length }}", "{{ -n|abs }}", "{{ not n is defined }}", "{{ n is not defined or true }}",
    "{{ 'x' if n is string else 'y' if n is number else 'z' }}", "{% set x=s.split(' ')[0][1:] %}{{x}}",
    "{{ s.split(',')|map('trim')|list }}", "{{ [s,u]|map('length')|list }}",
    "{{ ['a','b']|map('replace','a','z')|list }}", "{{ l|map('add') }}", "{{ D|map(attribute='zz')|list }}",
    "{{ D|map(attribute='zz',default=0)|list }}", "{{ D|sum(attribute='v') }}", "{{ d|dictsort(by='value') }}",
    "{{ nest }}", "{{ nest|tojson(indent=2) }}", "{{ nest|string|length }}",
    "{% for x in range(3) %}{{x}}{% endfor %}", "{% for x in 'ab' recursive %}{{x}}{% endfor %}",
    "{% if l %}{% set q=7 %}{% endif %}{{q}}",
    "{% for i in l %}{% if i==1 %}{% set fnd=i %}{% endif %}{% if fnd is defined %}D{{i}}{% endif %}{% endfor %}",
    "{{ l.index(1) }}{{ l.count(3) }}", "{% set l2 = l.copy() %}{{ l2 }}",
    "{{ s[:5] ~ '...' if s|length > 5 else s }}", "{% set loop_messages = l[1:] if t else l %}{{ loop_messages }}",
    "{{ loop_messages }}{{- '' -}}\n{{ n }}", "{{ 'a' if x.y.z else 'b' }}", "{{ x.y is defined }}",
    "{% if x is defined and x.y is defined %}a{% else %}b{% endif %}",
    "{%- macro a() -%} {%- if t %}\n q {% endif -%} {%- endmacro -%}\n{{ a() }}.",
    "{%- for x in l %}\n  {{- x }}\n{%- endfor %}\n", "{{ '' }}\n\n{% if t %}\n\n\nA\n{% endif %}\n\n",
]


def templates():
    for value in ["u", "s", "f", "l", "L", "d", "D", "undef"]:
        yield from ("{{ %s|%s }}" % (value, filter_call) for filter_call in FILTERS)
    for value in ["s", "n", "f", "l", "d", "N", "undef", "d.items()"]:
        yield from ("{{ %s is %s }}" % (value, test) for test in TESTS)
    operands = ["s", "n", "z", "f", "l", "N", "undef"]
    for left in operands:
        for right in operands:
            yield from ("{{ %s %s %s }}" % (left, operator, right) for operator in OPERATORS)
    for value in ["s", "u", "d", "l"]:
        yield from ("{{ %s.%s }}" % (value, method) for method in METHODS)
    for value in ["u", "l", "d", "N"]:
        yield from ("{{ %s[%s] }}" % (value, subscript) for subscript in SUBSCRIPTS)
    for value in ["1", "'ab'", "3.14159", "none", "-5"]:
        yield from ("{{ %r.format(%s, a=9) }}" % (text, value) for text in BRACE_FORMATS)
        yield from ("{{ %r %% %s }}" % (text, value) for text in PERCENT_FORMATS)
    yield from ("{{ %s }}" % expression for expression in EXPRESSIONS)
    yield from TEMPLATES


# Addresses of objects, and integers and complex numbers that tandem refuses by design.
LEFT_OUT = (" at 0x", "<class", "<built-in", "generator", "00000000000000000000", "j)")


def main():
    cases = []
    for template in templates():
        try:
            text = compile_template(template).render(**copy.deepcopy(VARIABLES))
        except Exception:  # any of Python's, which is all that a caller sees
            text = None
        if text is None or not any(mark in text for mark in LEFT_OUT):
            cases.append([template, text])
    print(json.dumps({"variables": VARIABLES, "cases": cases}, ensure_ascii=True, indent=0, separators=(",", ":")))


if __name__ == "__main__":
    main()
