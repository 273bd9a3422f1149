// What follows a value in jinja/expr_parser.h: attributes, subscripts, calls, filters, tests.
#include "fmt/core.h"

#include "text/jinja/expr_parser.h"

namespace tandem::jinja {

ExprParser::Parsed ExprParser::postfix(ExprPtr value) {
  while (true) {
    if (is_symbol(".") || is_symbol("[")) {
      TANDEM_ASSIGN(value, subscript(std::move(value)));
    } else if (is_symbol("(")) {
      TANDEM_ASSIGN(value, call(std::move(value)));
    } else {
      return value;
    }
  }
}

ExprParser::Parsed ExprParser::filters_and_tests(ExprPtr value) {
  while (true) {
    if (is_symbol("|")) {
      TANDEM_ASSIGN(value, filters(std::move(value)));
    } else if (is_name("is")) {
      TANDEM_ASSIGN(value, test(std::move(value)));
    } else if (is_symbol("(")) {
      TANDEM_ASSIGN(value, call(std::move(value)));
    } else {
      return value;
    }
  }
}

ExprParser::Parsed ExprParser::subscript(ExprPtr value) {
  if (skip_symbol(".")) {
    if (peek().type == TokenType::kName) {
      ExprPtr made = node(Expr::Kind::kAttribute);
      made->text = take().text;
      TANDEM_TRY(add(*made, std::move(value)));
      return made;
    }
    if (!peek().number.is<std::int64_t>()) return fail(fmt::format("expected a name or number, found {}", shown()));
    ExprPtr made = node(Expr::Kind::kSubscript);
    ExprPtr index = node(Expr::Kind::kConst);
    index->constant = take().number;
    TANDEM_TRY(add(*made, std::move(value)));
    TANDEM_TRY(add(*made, std::move(index)));
    return made;
  }
  TANDEM_TRY(expect_symbol("["));
  ExprPtr made = node(Expr::Kind::kSubscript);
  TANDEM_TRY(add(*made, std::move(value)));
  ExprPtr key;
  if (!is_symbol(":")) {
    TANDEM_ASSIGN(key, expression());
  }
  if (!is_symbol(":")) {
    if (is_symbol(",")) return fail("a subscript of several keys is not supported");
    TANDEM_TRY(add(*made, std::move(key)));
    TANDEM_TRY(expect_symbol("]"));
    return made;
  }
  made->kind = Expr::Kind::kSlice;
  TANDEM_TRY(add(*made, std::move(key)));
  for (int part = 0; part < 2; ++part) {  // stop and step
    ExprPtr bound;
    if (skip_symbol(":") && !is_symbol(":") && !is_symbol("]")) {
      TANDEM_ASSIGN(bound, expression());
    }
    TANDEM_TRY(add(*made, std::move(bound)));
  }
  TANDEM_TRY(expect_symbol("]"));
  return made;
}

ExprParser::Parsed ExprParser::call(ExprPtr callee) {
  ExprPtr made = node(Expr::Kind::kCall);
  TANDEM_TRY(add(*made, std::move(callee)));
  TANDEM_TRY(call_arguments(*made));
  return made;
}

absl::Status ExprParser::call_arguments(Expr& into) {
  TANDEM_TRY(expect_symbol("("));
  while (!is_symbol(")")) {
    const bool starred = into.star != nullptr || into.star_star != nullptr;
    if (is_symbol("*") || is_symbol("**")) {
      ExprPtr& slot = is_symbol("*") ? into.star : into.star_star;
      if (slot != nullptr || into.star_star != nullptr) return fail("unexpected '*' in a call");
      take();
      TANDEM_ASSIGN(slot, expression());
    } else if (peek().type == TokenType::kName && is_symbol("=", 1)) {
      if (into.star_star != nullptr) return fail("a named argument behind '**'");
      std::string name = take().text;
      take();
      TANDEM_ASSIGN(ExprPtr value, expression());
      into.depth = std::max(into.depth, 1 + value->depth);
      into.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (starred || !into.named.empty()) return fail("a positional argument behind named ones");
      TANDEM_ASSIGN(ExprPtr value, expression());
      TANDEM_TRY(add(into, std::move(value)));
    }
    if (!skip_symbol(",")) break;
  }
  return expect_symbol(")");
}

ExprParser::Parsed ExprParser::filters(ExprPtr input) {
  while (skip_symbol("|")) {
    TANDEM_ASSIGN(input, filter(std::move(input)));
  }
  return input;
}

ExprParser::Parsed ExprParser::first_filter(ExprPtr input) {
  TANDEM_ASSIGN(ExprPtr first, filter(std::move(input)));
  return filters(std::move(first));
}

ExprParser::Parsed ExprParser::filter(ExprPtr input) {
  ExprPtr made = node(Expr::Kind::kFilter);
  TANDEM_ASSIGN(made->text, expect_name());
  TANDEM_TRY(add(*made, std::move(input)));
  if (is_symbol("(")) TANDEM_TRY(call_arguments(*made));
  TANDEM_TRY(resolve(*made, find_filter(made->text), "filter"));
  return made;
}

ExprParser::Parsed ExprParser::test(ExprPtr value) {
  ExprPtr made = node(Expr::Kind::kTest);
  take();
  const bool negated = skip_name("not");
  TANDEM_ASSIGN(made->text, expect_name());
  TANDEM_TRY(add(*made, std::move(value)));
  const bool bare_argument = peek().type == TokenType::kString || peek().type == TokenType::kNumber || is_symbol("[") ||
                             is_symbol("{") ||
                             (peek().type == TokenType::kName && !is_name("else") && !is_name("or") && !is_name("and"));
  if (is_symbol("(")) {
    TANDEM_TRY(call_arguments(*made));
  } else if (bare_argument) {
    if (is_name("is")) return fail("tests cannot be chained with 'is'");
    TANDEM_ASSIGN(ExprPtr argument, primary());
    TANDEM_ASSIGN(argument, postfix(std::move(argument)));
    TANDEM_TRY(add(*made, std::move(argument)));
  }
  TANDEM_TRY(resolve(*made, find_test(made->text), "test"));
  if (!negated) return made;
  ExprPtr inverse = node(Expr::Kind::kNot);
  TANDEM_TRY(add(*inverse, std::move(made)));
  return inverse;
}

}  // namespace tandem::jinja
