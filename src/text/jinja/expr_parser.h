// Reads tokens and parses expressions; the statement parser (jinja/parser.cpp) is its only user.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/tree.h"

namespace tandem::jinja {

enum class Conditionals : std::uint8_t { kAllowed, kNotAllowed };  // "a if b else c"
enum class TupleIn : std::uint8_t { kOpen, kParentheses };

class ExprParser final {
 public:
  using Parsed = absl::StatusOr<ExprPtr>;

  explicit ExprParser(std::vector<Token> tokens);

  // Tokens.
  const Token& peek(std::size_t ahead = 0) const;
  bool is_symbol(std::string_view text, std::size_t ahead = 0) const;
  bool is_name(std::string_view text, std::size_t ahead = 0) const;
  Token take();
  bool skip_symbol(std::string_view text);
  bool skip_name(std::string_view text);
  absl::Status fail(std::string_view what) const;
  absl::Status expect_symbol(std::string_view text);
  absl::Status expect(TokenType type, std::string_view shown);
  absl::StatusOr<std::string> expect_name();
  std::string shown() const;

  // Expressions.
  Parsed expression(Conditionals conditionals = Conditionals::kAllowed);
  // One expression, or a tuple where commas follow. `end_name`: a keyword that ends it.
  Parsed tuple(Conditionals conditionals, std::string_view end_name = {}, TupleIn in = TupleIn::kOpen);
  // Names, namespace attributes where allowed, or a tuple of them.
  enum class Targets : std::uint8_t { kNames, kNamesAndAttributes };
  Parsed target(Targets targets, std::string_view end_name = {});
  Parsed filters(ExprPtr input);        // "|a|b(c)" behind `input`
  Parsed first_filter(ExprPtr input);   // "a|b(c)": of a filter block

  NameId intern(const std::string& name);
  Template take_names();
  // Behind a condition an unknown filter or test fails only when it runs, as in Jinja.
  int soft = 0;
  std::vector<Macro*> macros;  // whose bodies are being read

 private:
  Parsed disjunction();
  Parsed conjunction();
  Parsed negation();
  Parsed comparison();
  Parsed sum();
  Parsed concatenation();
  Parsed product();
  Parsed power();
  enum class Filters : std::uint8_t { kWith, kWithout };
  Parsed unary(Filters filters);
  Parsed primary();
  Parsed name(Token token);
  Parsed list();
  Parsed dict();
  Parsed postfix(ExprPtr value);
  Parsed subscript(ExprPtr value);
  Parsed filters_and_tests(ExprPtr value);
  Parsed filter(ExprPtr input);
  Parsed test(ExprPtr value);
  Parsed call(ExprPtr callee);
  absl::Status call_arguments(Expr& into);
  Parsed binary(Expr::Kind kind, Operator op, ExprPtr left, ExprPtr right) const;
  ExprPtr node(Expr::Kind kind) const;
  absl::Status add(Expr& parent, ExprPtr child) const;
  absl::Status resolve(Expr& expr, Function function, std::string_view what) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  Template names_;
};

}  // namespace tandem::jinja
