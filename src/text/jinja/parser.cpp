#include "text/jinja/parser.h"

#include <algorithm>
#include <array>

#include "fmt/core.h"
#include "fmt/ranges.h"

#include "text/jinja/expr_parser.h"

namespace tandem::jinja {
namespace {

constexpr std::size_t kMaxBlocks = 60;  // inside each other

using Body = std::vector<Stmt>;
using Ends = std::vector<std::string_view>;

class Parser final {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  absl::StatusOr<std::shared_ptr<const Template>> run() {
    Body body;
    TANDEM_TRY(statements(body, {}));
    auto result = std::make_shared<Template>(in_.take_names());
    result->body = std::move(body);
    return result;
  }

 private:
  // Up to a tag of `ends`, whose name is left to be read; without ends up to the end of the template.
  absl::Status statements(Body& body, const Ends& ends) {
    while (true) {
      switch (in_.peek().type) {
        case TokenType::kData: {
          Stmt& stmt = start(body, Stmt::Kind::kData);
          stmt.text = make_text_ptr(in_.take().text);
          break;
        }
        case TokenType::kPrintBegin: {
          in_.take();
          Stmt& stmt = start(body, Stmt::Kind::kPrint);
          TANDEM_ASSIGN(stmt.value, in_.tuple(Conditionals::kAllowed));
          TANDEM_TRY(in_.expect(TokenType::kPrintEnd, "}}"));
          break;
        }
        case TokenType::kBlockBegin: {
          in_.take();
          const auto ended = [&](std::string_view name) { return in_.is_name(name); };
          if (std::any_of(ends.begin(), ends.end(), ended)) return absl::OkStatus();
          TANDEM_TRY(statement(body));
          TANDEM_TRY(in_.expect(TokenType::kBlockEnd, "%}"));
          break;
        }
        default:
          if (ends.empty()) return absl::OkStatus();
          return in_.fail(fmt::format("the template ends inside '{}' of line {}: {} is missing", open_.back().name,
                                      open_.back().line, fmt::join(ends, " or ")));
      }
    }
  }

  // The body of a tag whose own text has been read, up to and with the name of an end tag, which is returned.
  absl::StatusOr<std::string> block(Body& body, const Ends& ends) {
    in_.skip_symbol(":");
    TANDEM_TRY(in_.expect(TokenType::kBlockEnd, "%}"));
    TANDEM_TRY(statements(body, ends));
    return in_.take().text;
  }

  Stmt& start(Body& body, Stmt::Kind kind) const {
    Stmt& stmt = body.emplace_back();
    stmt.kind = kind;
    stmt.line = in_.peek().line;
    return stmt;
  }

  absl::Status statement(Body& body) {
    using Parse = absl::Status (Parser::*)(Body&);
    constexpr std::array<std::pair<std::string_view, Parse>, 11> kTags = {{{"if", &Parser::parse_if},
                                                                           {"for", &Parser::parse_for},
                                                                           {"set", &Parser::parse_set},
                                                                           {"macro", &Parser::parse_macro},
                                                                           {"call", &Parser::parse_call},
                                                                           {"filter", &Parser::parse_filter},
                                                                           {"with", &Parser::parse_with},
                                                                           {"generation", &Parser::parse_generation},
                                                                           {"print", &Parser::parse_print},
                                                                           {"break", &Parser::parse_jump},
                                                                           {"continue", &Parser::parse_jump}}};
    constexpr std::array<std::string_view, 7> kUnsupported = {"include", "import", "from",      "extends",
                                                              "block",   "do",     "autoescape"};
    if (in_.peek().type != TokenType::kName) return in_.fail(fmt::format("expected a tag, found {}", in_.shown()));
    const std::string name = in_.peek().text;
    if (std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end()) {
      return in_.fail(fmt::format("the tag '{}' is not supported", name));
    }
    const auto* tag = std::find_if(kTags.begin(), kTags.end(), [&](const auto& t) { return t.first == name; });
    if (tag == kTags.end()) {
      if (open_.empty()) return in_.fail(fmt::format("unknown tag '{}'", name));
      return in_.fail(
          fmt::format("unknown tag '{}' inside '{}' of line {}", name, open_.back().name, open_.back().line));
    }
    if (open_.size() >= kMaxBlocks) return in_.fail(fmt::format("blocks are nested deeper than {}", kMaxBlocks));
    open_.push_back({.name = name, .line = in_.peek().line});
    const absl::Status status = (this->*tag->second)(body);
    open_.pop_back();
    return status;
  }

  absl::Status parse_if(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kIf;
    stmt.line = in_.take().line;
    ++in_.soft;
    std::string end = "elif";
    while (end == "elif") {
      Branch& branch = stmt.branches.emplace_back();
      TANDEM_ASSIGN(branch.condition, in_.tuple(Conditionals::kNotAllowed));
      TANDEM_ASSIGN(end, block(branch.body, {"elif", "else", "endif"}));
    }
    if (end == "else") {
      TANDEM_ASSIGN(end, block(stmt.orelse, {"endif"}));
    }
    --in_.soft;
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_for(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kFor;
    stmt.line = in_.take().line;
    TANDEM_ASSIGN(stmt.target, in_.target(ExprParser::Targets::kNames, "in"));
    if (!in_.skip_name("in")) return in_.fail(fmt::format("expected 'in', found {}", in_.shown()));
    TANDEM_ASSIGN(stmt.value, in_.tuple(Conditionals::kNotAllowed, "recursive"));
    if (in_.skip_name("if")) {
      TANDEM_ASSIGN(stmt.filter, in_.expression());
    }
    stmt.recursive = in_.skip_name("recursive");
    ++num_loops_;
    const int soft = std::exchange(in_.soft, 0);
    TANDEM_ASSIGN(const std::string end, block(stmt.body, {"else", "endfor"}));
    --num_loops_;
    if (end == "else") {
      TANDEM_ASSIGN(const std::string last, block(stmt.orelse, {"endfor"}));
    }
    in_.soft = soft;
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_set(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kSet;
    stmt.line = in_.take().line;
    TANDEM_ASSIGN(stmt.target, in_.target(ExprParser::Targets::kNamesAndAttributes));
    if (in_.skip_symbol("=")) {
      TANDEM_ASSIGN(stmt.value, in_.tuple(Conditionals::kAllowed));
    } else {
      stmt.kind = Stmt::Kind::kSetBlock;
      TANDEM_ASSIGN(stmt.value, in_.filters(nullptr));
      const int soft = std::exchange(in_.soft, 0);
      TANDEM_ASSIGN(const std::string end, block(stmt.body, {"endset"}));
      in_.soft = soft;
    }
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_filter(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kFilterBlock;
    stmt.line = in_.take().line;
    TANDEM_ASSIGN(stmt.value, in_.first_filter(nullptr));
    const int soft = std::exchange(in_.soft, 0);
    TANDEM_ASSIGN(const std::string end, block(stmt.body, {"endfilter"}));
    in_.soft = soft;
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_macro(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kMacro;
    stmt.line = in_.take().line;
    stmt.macro = std::make_unique<Macro>();
    TANDEM_ASSIGN(stmt.macro->name, in_.expect_name());
    stmt.name = in_.intern(stmt.macro->name);
    if (!in_.is_symbol("(")) return in_.expect_symbol("(");
    TANDEM_TRY(signature(*stmt.macro));
    TANDEM_TRY(macro_body(*stmt.macro, "endmacro"));
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_call(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kCallBlock;
    stmt.line = in_.take().line;
    stmt.macro = std::make_unique<Macro>();
    stmt.macro->name = "caller";
    if (in_.is_symbol("(")) TANDEM_TRY(signature(*stmt.macro));
    TANDEM_ASSIGN(stmt.value, in_.expression());
    if (stmt.value->kind != Expr::Kind::kCall) return in_.fail("expected a call behind 'call'");
    TANDEM_TRY(macro_body(*stmt.macro, "endcall"));
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status signature(Macro& macro) {
    TANDEM_TRY(in_.expect_symbol("("));
    while (!in_.is_symbol(")")) {
      Macro::Parameter& parameter = macro.parameters.emplace_back();
      TANDEM_ASSIGN(parameter.name, in_.expect_name());
      parameter.id = in_.intern(parameter.name);
      if (in_.skip_symbol("=")) {
        TANDEM_ASSIGN(parameter.fallback, in_.expression());
      } else if (macro.parameters.size() > 1 && (macro.parameters.end() - 2)->fallback != nullptr) {
        return in_.fail("a parameter without default behind one with");
      }
      if (!in_.skip_symbol(",")) break;
    }
    return in_.expect_symbol(")");
  }

  absl::Status macro_body(Macro& macro, std::string_view end_name) {
    in_.macros.push_back(&macro);
    const int num_loops = std::exchange(num_loops_, 0);
    const int soft = std::exchange(in_.soft, 0);
    const auto end = block(macro.body, {end_name});
    in_.soft = soft;
    num_loops_ = num_loops;
    in_.macros.pop_back();
    return end.status();
  }

  absl::Status parse_with(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kScope;
    stmt.line = in_.take().line;
    while (in_.peek().type != TokenType::kBlockEnd) {
      if (!stmt.assignments.empty()) TANDEM_TRY(in_.expect_symbol(","));
      TANDEM_ASSIGN(ExprPtr target, in_.target(ExprParser::Targets::kNames));
      TANDEM_TRY(in_.expect_symbol("="));
      TANDEM_ASSIGN(ExprPtr value, in_.expression());
      stmt.assignments.emplace_back(std::move(target), std::move(value));
    }
    TANDEM_ASSIGN(const std::string end, block(stmt.body, {"endwith"}));
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  // Marks what the model wrote, for training; renders as a scope.
  absl::Status parse_generation(Body& body) {
    Stmt stmt;
    stmt.kind = Stmt::Kind::kScope;
    stmt.line = in_.take().line;
    const int num_loops = std::exchange(num_loops_, 0);
    TANDEM_ASSIGN(const std::string end, block(stmt.body, {"endgeneration"}));
    num_loops_ = num_loops;
    body.push_back(std::move(stmt));
    return absl::OkStatus();
  }

  absl::Status parse_print(Body& body) {
    in_.take();
    while (in_.peek().type != TokenType::kBlockEnd) {
      Stmt& stmt = start(body, Stmt::Kind::kPrint);
      TANDEM_ASSIGN(stmt.value, in_.expression());
      if (!in_.skip_symbol(",")) break;
    }
    return absl::OkStatus();
  }

  absl::Status parse_jump(Body& body) {
    if (num_loops_ == 0) return in_.fail(fmt::format("{} outside of a loop", in_.shown()));
    start(body, in_.is_name("break") ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
    in_.take();
    return absl::OkStatus();
  }

  struct Open {
    std::string name;
    int line = 0;
  };
  ExprParser in_;
  std::vector<Open> open_;
  int num_loops_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Template>> parse(std::string_view source) {
  TANDEM_ASSIGN(auto tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace tandem::jinja
