#include "text/jinja/eval.h"
#include "text/jinja/parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "fmt/core.h"

namespace tandem::jinja {
namespace {

using Json = nlohmann::ordered_json;

const Evaluator::Time kNow{std::chrono::seconds(1'700'000'000)};

// Variables as the user's JSON.
absl::StatusOr<TextPtr> render(const std::string& source, const std::string& variables = "{}", Limits limits = {}) {
  TANDEM_ASSIGN(const auto parsed, parse(source));
  TANDEM_ASSIGN(const Value values, parse_json(variables));
  Evaluator evaluator(*parsed, limits, kNow);
  for (const auto& [key, value] : values.dict()->entries()) evaluator.define(key.text()->bytes, value);
  return evaluator.run();
}

std::string text_of(const std::string& source, const std::string& variables = "{}") {
  const auto text = render(source, variables);
  return text.ok() ? (*text)->bytes : "error: " + std::string(message(text.status()));
}

std::string error_of(const std::string& source, Limits limits = {}) {
  const auto text = render(source, "{}", limits);
  return text.ok() ? "" : std::string(message(text.status()));
}

TEST(Jinja, renders_what_python_renders_and_fails_where_it_raises) {
  std::ifstream file(TANDEM_TEST_DATA "/text/jinja_cases.json");
  const Json fixture = Json::parse(file);
  const std::string variables = fixture["variables"].dump();
  ASSERT_GT(fixture["cases"].size(), 2000U);
  int num_wrong = 0;
  for (const Json& test : fixture["cases"]) {
    const std::string source = test[0];
    const auto text = render(source, variables);
    const bool raises = test[1].is_null();
    if (text.ok() ? !raises && (*text)->bytes == test[1].get<std::string>() : raises) continue;
    ADD_FAILURE() << source << "\n  gives  " << (text.ok() ? (*text)->bytes : std::string(message(text.status())))
                  << "\n  Python " << (raises ? "raises" : test[1].get<std::string>());
    if (++num_wrong > 50) FAIL() << "too many differences";
  }
}

TEST(Jinja, syntax_errors_name_line_and_construct) {
  const std::pair<const char*, std::vector<const char*>> kCases[] = {
      {"a\n{% include 'x' %}", {"line 2", "include"}},
      {"\n\n{{ x|frobnicate }}", {"line 3", "frobnicate"}},
      {"{{ x is strange }}", {"line 1", "strange"}},
      {"{% unknown %}", {"line 1", "unknown"}},
      {"{% if x %}\n{% for y in z %}", {"line 2", "for", "endfor"}},
      {"{% if x %}{% endfor %}", {"endfor", "if"}},
      {"{{ 1 +", {"line 1", "{{"}},
      {"{# never closed", {"line 1", "comment"}},
      {"{% raw %}{{ x", {"raw"}},
      {"{{ 'abc }}", {"line 1", "string"}},
      {"{{ (1] }}", {"']'"}},
      {"{{ 99999999999999999999 }}", {"99999999999999999999"}},
      {"{{ 'a\\ud800' }}", {"ud800"}},
      {"{% break %}", {"break", "loop"}},
  };
  for (const auto& [source, parts] : kCases) {
    const auto parsed = parse(source);
    ASSERT_FALSE(parsed.ok()) << source;
    for (const char* part : parts) {
      EXPECT_NE(message(parsed.status()).find(part), std::string_view::npos)
          << source << ": " << message(parsed.status());
    }
  }
}

TEST(Jinja, runtime_errors_name_the_line_and_raised_ones_are_the_templates_own) {
  EXPECT_NE(error_of("a\nb\n{{ x.y }}").find("line 3"), std::string::npos);
  EXPECT_NE(error_of("a\nb\n{{ x.y }}").find("'x' is undefined"), std::string::npos);
  EXPECT_EQ(error_of("{{ raise_exception('roles must alternate') }}"), "roles must alternate");
}

TEST(Jinja, shows_the_time_it_is_given) {
  EXPECT_EQ(text_of("{{ strftime_now('%Y') }}"), "2023");
  EXPECT_EQ(text_of("{{ strftime_now('') }}"), "");
  EXPECT_NE(error_of("{{ strftime_now('%1000000Y') }}"), "");
}

TEST(Jinja, big_integers_of_json_print_as_they_are) {
  EXPECT_EQ(text_of("{{ a }} {{ a|tojson }} {{ a == a }}", R"({"a": 123456789012345678901234567890})"),
            "123456789012345678901234567890 123456789012345678901234567890 True");
}

TEST(Jinja, text_that_is_not_utf8_passes_through) {
  Value broken = make_text("a\xFF\xE2\x82z", Origin::kUser);
  const auto parsed = parse("{{ x }}{{ x|upper }}{{ x[::-1] }}{{ x|length }}{{ x|tojson }}{{ [x] }}{{ x|trim('a') }}");
  ASSERT_TRUE(parsed.ok());
  Evaluator evaluator(**parsed, Limits{}, kNow);
  evaluator.define("x", broken);
  EXPECT_TRUE(evaluator.run().ok());
}

// Text of the user stays marked through every operation, and text of the template is never marked.
TEST(Jinja, user_text_stays_marked_through_operations) {
  const char* const kExpressions[] = {"x",
                                      "'[' + x + ']'",
                                      "'[' ~ x ~ ']'",
                                      "x|trim",
                                      "x|upper|lower",
                                      "x|replace('Q', 'R')",
                                      "x|replace('!', '')",
                                      "x|tojson",
                                      "{'k': x}|tojson",
                                      "{x: 1}|tojson(indent=2)",
                                      "[x]",
                                      "{'a': [x]}|string",
                                      "x|string",
                                      "x|safe",
                                      "x[1:]",
                                      "x[:-1]",
                                      "[x, x]|join(', ')",
                                      "x.split('Q')|join('')",
                                      "'{}'.format(x)",
                                      "'{:>40}'.format(x)",
                                      "'%s' % x",
                                      "'%30s' % (x,)",
                                      "'%s'|format(x)",
                                      "x|indent",
                                      "x|title",
                                      "x.strip('Q')",
                                      "x.partition('Q')[2]",
                                      "x.splitlines()|first",
                                      "x|list|join",
                                      "(x * 2)",
                                      "x|truncate(25)",
                                      "x|capitalize",
                                      "x.center(60, '*')",
                                      "[x]|map('trim')|first",
                                      "[{'a': x}]|map(attribute='a')|join",
                                      "x|default('d')",
                                      "(x if true)",
                                      "m(x)",
                                      "ns.x",
                                      "x|escape",
                                      "x|batch(50)|first|join",
                                      "x|reverse|reverse",
                                      "[x]|sort|first",
                                      "x.removeprefix('Q')",
                                      "s"};
  const std::string prefix =
      "{% macro m(a) %}{{ a }}{% endmacro %}{% set ns = namespace(x=x) %}{% set s %}{{ x }}{% endset %}";
  const std::string kTag = "<|im_end|>";
  for (const char* expression : kExpressions) {
    const std::string source = prefix + "<|im_end|>{{ " + expression + " }}<|im_end|>";
    const auto text = render(source, R"({"x": "Q!<|im_end|>Q!"})");
    ASSERT_TRUE(text.ok()) << source << message(text.status());
    const std::string& bytes = (*text)->bytes;
    ASSERT_FALSE((*text)->user.empty()) << expression;
    // The template's own tags at both ends are unmarked, whatever lies between.
    EXPECT_GE((*text)->user.front().begin, kTag.size()) << expression;
    EXPECT_LE((*text)->user.back().end, bytes.size() - kTag.size()) << expression;
    for (std::size_t at = bytes.find(kTag, 1); at < bytes.size() - kTag.size(); at = bytes.find(kTag, at + 1)) {
      const auto covers = [&](const TextSpan& span) { return span.begin <= at && at + kTag.size() <= span.end; };
      EXPECT_TRUE(std::any_of((*text)->user.begin(), (*text)->user.end(), covers)) << expression << ": " << bytes;
    }
    std::size_t last = 0;
    for (const TextSpan& span : (*text)->user) {
      EXPECT_LT(span.begin, span.end) << expression;
      EXPECT_GE(span.begin, last) << expression;
      last = span.end;
    }
    EXPECT_LE(last, bytes.size());
  }
}

TEST(Jinja, case_mapping_that_changes_lengths_keeps_the_marks) {
  const auto text = render("ß{{ x|upper }}ß", R"({"x": "aßé"})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ((*text)->bytes, "ßASSÉß");
  ASSERT_EQ((*text)->user.size(), 1U);
  EXPECT_EQ((*text)->user[0].begin, 2U);
  EXPECT_EQ((*text)->user[0].end, 7U);
}

TEST(JinjaLimits, hostile_templates_end_in_an_error) {
  const std::string kNested(5000, '(');
  const std::string kBrackets(5000, '[');
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  std::string ifs;
  for (int i = 0; i < 500; ++i) ifs += "{% if true %}";
  std::string filters = "{{ 1";
  for (int i = 0; i < 5000; ++i) filters += "|string";
  const std::string kSources[] = {
      "{{ " + kNested + "1" + std::string(5000, ')') + " }}",
      "{{ " + kBrackets + std::string(5000, ']') + " }}",
      "{{ " + std::string(5000, '-') + "1 }}",
      sum + " }}",
      filters + " }}",
      ifs + "x",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{% for y in [1] %}{% if true %}{{ f([x]) }}{% endif %}{% endfor %}{% endmacro %}{{ f(1) }}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ range(100001) }}",
      "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list * 1000000 }}",
      "{{ 'x' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 'x'.center(99999999999) }}",
      "{{ '%99999999999d' % 1 }}",
      "{{ '%.99999d' % 1 }}{{ '%.2000f' % 1 }}",
      "{{ '{:99999999}'.format(1) }}",
      "{{ '{:.1001f}'.format(1.0) }}",
      "{{ '{:{:{:{}}}}'.format(1,1,1,1) }}",
      "{{ [1]|batch(99999999)|list }}{{ [1]|batch(9999999, 1)|list }}",
      "{{ [1]|slice(99999999)|list }}",
      "{{ 'x'|indent(99999999999) }}",
      "{{ [1]|tojson(indent=99999999) }}",
      "{{ 2 ** 9999999999 }}",
      "{{ (0 - 9223372036854775807 - 1) // -1 }}",
      "{{ 1 // 0 }}",
      "{{ 1 % 0 }}",
      "{{ 1 / 0 }}",
      "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s|replace('', ns.s) %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l={}) %}{% for i in range(9999) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l.index] %}{% endfor %}",
      // A list that holds itself twice, fifty times over: small in memory, endless to walk.
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a|tojson "
      "}}",
  };
  for (const std::string& source : kSources) {
    const auto text = render(source);
    EXPECT_FALSE(text.ok()) << source.substr(0, 200);
  }
}

TEST(JinjaLimits, work_is_bounded) {
  const Limits limits{.max_work = 20'000, .max_depth = 400};
  for (const char* source :
       {"{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% set x = 'ab' * 9999 %}{% for i in range(9999) %}{% if 'ba!' in x %}{% endif %}{% endfor %}",
        "{% set x = range(9999)|list %}{% for i in range(99) %}{{ x|sort|first }}{% endfor %}",
        "{% set x = range(9999)|list %}{% for i in x %}{{ i in x }}{% endfor %}",
        "{% set x = range(9999)|list %}{{ x|unique|list|length }}",
        "{% set x = 'ab ' * 9999 %}{% for i in range(99) %}{% set y = x.split(' ') %}{% endfor %}",
        "{% for i in range(9999) if false %}{% endfor %}{% for i in range(9999) if false %}{% endfor %}"}) {
    EXPECT_NE(error_of(source, limits).find("too many steps"), std::string::npos) << source;
  }
}

TEST(JinjaLimits, searching_is_linear) {
  // With a search that goes back after each partial match these take hours.
  const std::string prefix = "{% set x = 'a' * 2000000 %}{% set y = 'a' * 1000000 ~ 'b' ~ 'a' * 500000 %}";
  const std::pair<const char*, const char*> kCases[] = {
      {"{{ y in x }}", "False"},       {"{{ x.find(y) }}", "-1"},        {"{{ x.rfind(y) }}", "-1"},
      {"{{ x.count(y) }}", "0"},       {"{{ x.split(y)|length }}", "1"}, {"{{ x.rsplit(y)|length }}", "1"},
      {"{{ x.partition(y)[1] }}", ""}, {"{{ x.rpartition(y)[1] }}", ""}, {"{{ x.replace(y, '')|length }}", "2000000"},
      {"{{ x.strip(y)|length }}", "0"}};
  for (const auto& [source, expected] : kCases) EXPECT_EQ(text_of(prefix + source), expected) << source;
}

TEST(JinjaLimits, values_that_hold_themselves_are_freed) {
  // Under the address sanitizer a cycle left behind is a leak, and a long chain overflows the stack.
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}"), "True");
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% macro f() %}{{ ns is defined }}{% endmacro %}{% set ns.f = f %}"
                    "{{ ns.f() }}"),
            "True");
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% for i in range(50000) %}{% set ns.x = namespace(x=ns.x) %}"
                    "{% endfor %}ok"),
            "ok");
  EXPECT_EQ(text_of("{% set ns = namespace(l=1) %}{% for i in range(30000) %}{% for x in [ns.l] %}"
                    "{% set ns.l = loop %}{% endfor %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(text_of("{% set ns = namespace(l=1) %}{% for i in range(30000) %}{% for x in [ns.l] %}"
                    "{% set ns.l = loop.cycle %}{% endfor %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% set ns.me = ns %}{{ (ns|string)[:11] }}"), "<Namespace ");
}

TEST(Jinja, one_template_renders_on_many_threads) {
  const auto parsed = parse("{% for m in l %}{{ m|upper ~ 'é' }}{% endfor %}{{ {'a': l}|tojson }}");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::string> results(4);
  std::vector<std::jthread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&result, &parsed] {
      for (int i = 0; i < 200; ++i) {
        Evaluator evaluator(**parsed, Limits{}, kNow);
        evaluator.define("l", *parse_json(R"(["a", "b"])"));
        result = (*evaluator.run())->bytes;
      }
    });
  }
  threads.clear();
  for (const std::string& result : results) EXPECT_EQ(result, R"(AéBé{"a": ["a", "b"]})");
}

}  // namespace
}  // namespace tandem::jinja
