#include "text/jinja/expr_parser.h"

#include <algorithm>

#include "fmt/core.h"

namespace tandem::jinja {
namespace {

constexpr int kMaxDepth = 100;

// Counts a level of recursion for as long as it lives.
class Nested final {
 public:
  explicit Nested(int& depth) : depth_(depth) { ++depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  ~Nested() { --depth_; }

 private:
  int& depth_;
};

}  // namespace

ExprParser::ExprParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) intern(name);
}

const Token& ExprParser::peek(std::size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

bool ExprParser::is_symbol(std::string_view text, std::size_t ahead) const {
  return peek(ahead).type == TokenType::kSymbol && peek(ahead).text == text;
}

bool ExprParser::is_name(std::string_view text, std::size_t ahead) const {
  return peek(ahead).type == TokenType::kName && peek(ahead).text == text;
}

Token ExprParser::take() {
  Token token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExprParser::skip_symbol(std::string_view text) {
  if (!is_symbol(text)) return false;
  ++at_;
  return true;
}

bool ExprParser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  ++at_;
  return true;
}

absl::Status ExprParser::fail(std::string_view what) const { return template_error(peek().line, what); }

std::string ExprParser::shown() const {
  return peek().type == TokenType::kEnd ? "the end of the template" : fmt::format("'{}'", peek().text);
}

absl::Status ExprParser::expect_symbol(std::string_view text) {
  if (skip_symbol(text)) return absl::OkStatus();
  return fail(fmt::format("expected '{}', found {}", text, shown()));
}

absl::Status ExprParser::expect(TokenType type, std::string_view text) {
  if (peek().type != type) return fail(fmt::format("expected '{}', found {}", text, shown()));
  take();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ExprParser::expect_name() {
  if (peek().type != TokenType::kName) return fail(fmt::format("expected a name, found {}", shown()));
  return take().text;
}

NameId ExprParser::intern(const std::string& name) {
  const auto [found, added] = names_.ids.emplace(name, static_cast<NameId>(names_.names.size()));
  if (added) names_.names.push_back(name);
  return found->second;
}

Template ExprParser::take_names() { return std::move(names_); }

ExprPtr ExprParser::node(Expr::Kind kind) const {
  auto made = std::make_unique<Expr>();
  made->kind = kind;
  made->line = peek().line;
  return made;
}

// Keeps the depth of the tree, which bounds every recursion over it.
absl::Status ExprParser::add(Expr& parent, ExprPtr child) const {
  if (child != nullptr) parent.depth = std::max(parent.depth, 1 + child->depth);
  parent.args.push_back(std::move(child));
  if (parent.depth <= kMaxDepth) return absl::OkStatus();
  return template_error(parent.line, fmt::format("an expression is nested deeper than {}", kMaxDepth));
}

absl::Status ExprParser::resolve(Expr& expr, Function function, std::string_view what) const {
  expr.function = function;
  if (function != nullptr || soft > 0) return absl::OkStatus();
  return template_error(expr.line, fmt::format("the {} '{}' is not supported", what, expr.text));
}

ExprParser::Parsed ExprParser::binary(Expr::Kind kind, Operator op, ExprPtr left, ExprPtr right) const {
  ExprPtr made = node(kind);
  made->op = op;
  made->line = left->line;
  TANDEM_TRY(add(*made, std::move(left)));
  TANDEM_TRY(add(*made, std::move(right)));
  return made;
}

ExprParser::Parsed ExprParser::expression(Conditionals conditionals) {
  const Nested nested(nesting_);
  if (nesting_ > kMaxDepth) return fail(fmt::format("an expression is nested deeper than {}", kMaxDepth));
  if (conditionals == Conditionals::kNotAllowed) return disjunction();
  TANDEM_ASSIGN(ExprPtr value, disjunction());
  while (is_name("if")) {
    // Jinja defers unknown filters of all three parts; the first is already read, so it stays strict.
    const Nested softer(soft);
    ExprPtr made = node(Expr::Kind::kConditional);
    take();
    TANDEM_ASSIGN(ExprPtr condition, disjunction());
    ExprPtr otherwise;
    if (skip_name("else")) {
      TANDEM_ASSIGN(otherwise, expression());
    }
    TANDEM_TRY(add(*made, std::move(value)));
    TANDEM_TRY(add(*made, std::move(condition)));
    TANDEM_TRY(add(*made, std::move(otherwise)));
    value = std::move(made);
  }
  return value;
}

ExprParser::Parsed ExprParser::disjunction() {
  TANDEM_ASSIGN(ExprPtr left, conjunction());
  while (skip_name("or")) {
    TANDEM_ASSIGN(ExprPtr right, conjunction());
    TANDEM_ASSIGN(left, binary(Expr::Kind::kOr, {}, std::move(left), std::move(right)));
  }
  return left;
}

ExprParser::Parsed ExprParser::conjunction() {
  TANDEM_ASSIGN(ExprPtr left, negation());
  while (skip_name("and")) {
    TANDEM_ASSIGN(ExprPtr right, negation());
    TANDEM_ASSIGN(left, binary(Expr::Kind::kAnd, {}, std::move(left), std::move(right)));
  }
  return left;
}

ExprParser::Parsed ExprParser::negation() {
  if (!is_name("not")) return comparison();
  const Nested nested(nesting_);
  if (nesting_ > kMaxDepth) return fail(fmt::format("an expression is nested deeper than {}", kMaxDepth));
  ExprPtr made = node(Expr::Kind::kNot);
  take();
  TANDEM_ASSIGN(ExprPtr value, negation());
  TANDEM_TRY(add(*made, std::move(value)));
  return made;
}

ExprParser::Parsed ExprParser::comparison() {
  constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {"==", Comparison::kEqual}, {"!=", Comparison::kNotEqual},     {"<=", Comparison::kLessEqual},
      {"<", Comparison::kLess},   {">=", Comparison::kGreaterEqual}, {">", Comparison::kGreater}};
  TANDEM_ASSIGN(ExprPtr first, sum());
  ExprPtr chain;
  while (true) {
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                    [&](const auto& candidate) { return is_symbol(candidate.first); });
    Comparison comparison = Comparison::kIn;
    if (sign != std::end(kSigns)) {
      comparison = sign->second;
    } else if (is_name("not") && is_name("in", 1)) {
      comparison = Comparison::kNotIn;
      take();
    } else if (!is_name("in")) {
      break;
    }
    if (chain == nullptr) {
      chain = node(Expr::Kind::kCompare);
      TANDEM_TRY(add(*chain, std::move(first)));
    }
    take();
    TANDEM_ASSIGN(ExprPtr next, sum());
    chain->comparisons.push_back(comparison);
    TANDEM_TRY(add(*chain, std::move(next)));
  }
  if (chain != nullptr) return chain;
  return first;
}

ExprParser::Parsed ExprParser::sum() {
  TANDEM_ASSIGN(ExprPtr left, concatenation());
  while (is_symbol("+") || is_symbol("-")) {
    const Operator op = take().text == "+" ? Operator::kAdd : Operator::kSubtract;
    TANDEM_ASSIGN(ExprPtr right, concatenation());
    TANDEM_ASSIGN(left, binary(Expr::Kind::kBinary, op, std::move(left), std::move(right)));
  }
  return left;
}

ExprParser::Parsed ExprParser::concatenation() {
  TANDEM_ASSIGN(ExprPtr first, product());
  if (!is_symbol("~")) return first;
  ExprPtr made = node(Expr::Kind::kConcat);
  TANDEM_TRY(add(*made, std::move(first)));
  while (skip_symbol("~")) {
    TANDEM_ASSIGN(ExprPtr next, product());
    TANDEM_TRY(add(*made, std::move(next)));
  }
  return made;
}

ExprParser::Parsed ExprParser::product() {
  TANDEM_ASSIGN(ExprPtr left, power());
  while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
    const std::string sign = take().text;
    const Operator op = sign == "*"    ? Operator::kMultiply
                        : sign == "/"  ? Operator::kDivide
                        : sign == "//" ? Operator::kFloorDivide
                                       : Operator::kModulo;
    TANDEM_ASSIGN(ExprPtr right, power());
    TANDEM_ASSIGN(left, binary(Expr::Kind::kBinary, op, std::move(left), std::move(right)));
  }
  return left;
}

ExprParser::Parsed ExprParser::power() {
  TANDEM_ASSIGN(ExprPtr left, unary(Filters::kWith));
  while (skip_symbol("**")) {
    TANDEM_ASSIGN(ExprPtr right, unary(Filters::kWith));
    TANDEM_ASSIGN(left, binary(Expr::Kind::kBinary, Operator::kPower, std::move(left), std::move(right)));
  }
  return left;
}

ExprParser::Parsed ExprParser::unary(Filters filters) {
  ExprPtr value;
  if (is_symbol("-") || is_symbol("+")) {
    const Nested nested(nesting_);
    if (nesting_ > kMaxDepth) return fail(fmt::format("an expression is nested deeper than {}", kMaxDepth));
    value = node(is_symbol("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
    take();
    TANDEM_ASSIGN(ExprPtr operand, unary(Filters::kWithout));
    TANDEM_TRY(add(*value, std::move(operand)));
  } else {
    TANDEM_ASSIGN(value, primary());
  }
  TANDEM_ASSIGN(value, postfix(std::move(value)));
  if (filters == Filters::kWithout) return value;
  return filters_and_tests(std::move(value));
}

ExprParser::Parsed ExprParser::name(Token token) {
  ExprPtr made = node(Expr::Kind::kConst);
  made->line = token.line;
  if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
    made->constant = {token.text == "true" || token.text == "True"};
  } else if (token.text == "none" || token.text == "None") {
    made->constant = {None{}};
  } else {
    made->kind = Expr::Kind::kName;
    made->name = intern(token.text);
    for (Macro* macro : macros) {
      macro->uses_caller = macro->uses_caller || made->name == kCallerName;
      macro->uses_varargs = macro->uses_varargs || made->name == kVarargsName;
      macro->uses_kwargs = macro->uses_kwargs || made->name == kKwargsName;
    }
  }
  return made;
}

ExprParser::Parsed ExprParser::primary() {
  switch (peek().type) {
    case TokenType::kName: return name(take());
    case TokenType::kString: {
      ExprPtr made = node(Expr::Kind::kConst);
      std::string text;
      while (peek().type == TokenType::kString) text += take().text;
      made->constant = make_text(text);
      return made;
    }
    case TokenType::kNumber: {
      ExprPtr made = node(Expr::Kind::kConst);
      made->constant = take().number;
      return made;
    }
    default: break;
  }
  if (skip_symbol("(")) {
    TANDEM_ASSIGN(ExprPtr value, tuple(Conditionals::kAllowed, {}, TupleIn::kParentheses));
    TANDEM_TRY(expect_symbol(")"));
    return value;
  }
  if (is_symbol("[")) return list();
  if (is_symbol("{")) return dict();
  return fail(fmt::format("unexpected {}", shown()));
}

ExprParser::Parsed ExprParser::tuple(Conditionals conditionals, std::string_view end_name, TupleIn in) {
  ExprPtr made = node(Expr::Kind::kTuple);
  bool comma = false;
  while (true) {
    const bool ended = peek().type == TokenType::kPrintEnd || peek().type == TokenType::kBlockEnd || is_symbol(")") ||
                       (!end_name.empty() && is_name(end_name));
    if (ended) break;
    TANDEM_ASSIGN(ExprPtr item, expression(conditionals));
    TANDEM_TRY(add(*made, std::move(item)));
    if (!skip_symbol(",")) break;
    comma = true;
  }
  if (comma) return made;
  if (made->args.size() == 1) return std::move(made->args.front());
  if (in == TupleIn::kParentheses) return made;
  return fail(fmt::format("expected an expression, found {}", shown()));
}

ExprParser::Parsed ExprParser::target(Targets targets, std::string_view end_name) {
  ExprPtr made = node(Expr::Kind::kTuple);
  bool comma = false;
  while (true) {
    if (comma && (peek().type == TokenType::kBlockEnd || is_symbol(")") || is_symbol("=") ||
                  (!end_name.empty() && is_name(end_name)))) {
      break;
    }
    if (skip_symbol("(")) {
      TANDEM_ASSIGN(ExprPtr inner, target(targets));
      TANDEM_TRY(expect_symbol(")"));
      TANDEM_TRY(add(*made, std::move(inner)));
    } else {
      const Token token = peek();
      TANDEM_ASSIGN(const std::string text, expect_name());
      TANDEM_ASSIGN(ExprPtr item, name(token));
      if (item->kind != Expr::Kind::kName) return fail(fmt::format("cannot assign to '{}'", text));
      if (targets == Targets::kNamesAndAttributes && skip_symbol(".")) {
        ExprPtr attribute = node(Expr::Kind::kAttribute);
        TANDEM_ASSIGN(attribute->text, expect_name());
        TANDEM_TRY(add(*attribute, std::move(item)));
        item = std::move(attribute);
      } else if (item->name == kLoopName) {
        return fail("cannot assign to the special variable 'loop'");
      }
      TANDEM_TRY(add(*made, std::move(item)));
    }
    if (!skip_symbol(",")) break;
    comma = true;
  }
  if (!comma) return std::move(made->args.front());
  return made;
}

ExprParser::Parsed ExprParser::list() {
  ExprPtr made = node(Expr::Kind::kList);
  TANDEM_TRY(expect_symbol("["));
  while (!is_symbol("]")) {
    TANDEM_ASSIGN(ExprPtr item, expression());
    TANDEM_TRY(add(*made, std::move(item)));
    if (!skip_symbol(",")) break;
  }
  TANDEM_TRY(expect_symbol("]"));
  return made;
}

ExprParser::Parsed ExprParser::dict() {
  ExprPtr made = node(Expr::Kind::kDict);
  TANDEM_TRY(expect_symbol("{"));
  while (!is_symbol("}")) {
    TANDEM_ASSIGN(ExprPtr key, expression());
    TANDEM_TRY(expect_symbol(":"));
    TANDEM_ASSIGN(ExprPtr value, expression());
    TANDEM_TRY(add(*made, std::move(key)));
    TANDEM_TRY(add(*made, std::move(value)));
    if (!skip_symbol(",")) break;
  }
  TANDEM_TRY(expect_symbol("}"));
  return made;
}

}  // namespace tandem::jinja
