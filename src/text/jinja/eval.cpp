#include "text/jinja/eval.h"

#include <algorithm>

#include "fmt/core.h"

#include "text/jinja/render_guards.h"

namespace tandem::jinja {

const Value* Scope::find(NameId id) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [name, value] : scope->values_) {
      if (name == id) return &value;
    }
  }
  return nullptr;
}

void Scope::set(NameId id, Value value) {
  const auto found = std::find_if(values_.begin(), values_.end(), [&](const auto& entry) { return entry.first == id; });
  if (found == values_.end()) {
    values_.emplace_back(id, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

Evaluator::Evaluator(const Template& source, const Limits& limits, Time now)
    : template_(source), limits_(limits), now_(now), budget_(limits), scope_(std::make_shared<Scope>(nullptr)) {}

Evaluator::~Evaluator() {
  for (const auto& names : namespaces_) names->values = Dict();
  for (const auto& scope : captured_) scope->clear();
  for (const auto& loop : loops_) {
    loop->current = loop->previous = Value();
    loop->ahead.reset();
    loop->changed.reset();
    loop->outer.reset();
    loop->source = *Cursor::over(Value());
  }
}

void Evaluator::define(std::string_view name, Value value) {
  const auto found = template_.ids.find(std::string(name));
  if (found != template_.ids.end()) scope_->set(found->second, std::move(value));
}

absl::StatusOr<TextPtr> Evaluator::run() {
  TextBuilder out;
  out_ = &out;
  const auto flow = execute(template_.body);
  if (flow.ok()) return out.finish();
  if (raised_) return flow.status();
  return annotate(flow.status(), fmt::format("the chat template fails on line {}", failed_line_));
}

absl::Status Evaluator::raise(std::string text) {
  raised_ = true;
  return absl::InvalidArgumentError(std::move(text));
}

Value Evaluator::make_namespace(Dict values) {
  auto names = std::make_shared<Namespace>();
  names->values = std::move(values);
  namespaces_.push_back(names);
  return {std::move(names)};
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute(const std::vector<Stmt>& body) {
  for (const Stmt& stmt : body) {
    const auto flow = execute(stmt);
    if (!flow.ok() && failed_line_ == 0) failed_line_ = stmt.line;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute(const Stmt& stmt) {
  const Depth depth(*this);
  TANDEM_TRY(depth.check());
  TANDEM_TRY(budget_.charge(1));
  switch (stmt.kind) {
    case Stmt::Kind::kData: out_->append(*stmt.text); break;
    case Stmt::Kind::kPrint: {
      TANDEM_ASSIGN(const Value value, eval(*stmt.value));
      TANDEM_TRY(print(value));
      break;
    }
    case Stmt::Kind::kIf: return execute_if(stmt);
    case Stmt::Kind::kFor: {
      TANDEM_ASSIGN(const Value iterable, eval(*stmt.value));
      if (!stmt.recursive) return run_loop(stmt, iterable, scope_, 0);
      TANDEM_TRY(run_loop(stmt, iterable, scope_, 0).status());
      break;
    }
    case Stmt::Kind::kSet: {
      TANDEM_ASSIGN(Value value, eval(*stmt.value));
      TANDEM_TRY(assign(*stmt.target, std::move(value)));
      break;
    }
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilterBlock: return execute_capture(stmt);
    case Stmt::Kind::kMacro: scope_->set(stmt.name, make_macro(*stmt.macro)); break;
    case Stmt::Kind::kCallBlock: TANDEM_TRY(execute_call_block(stmt)); break;
    case Stmt::Kind::kScope: return execute_scope(stmt);
    case Stmt::Kind::kBreak: return Flow::kBreak;
    case Stmt::Kind::kContinue: return Flow::kContinue;
  }
  if (out_->full()) return out_->finish().status();
  return Flow::kNext;
}

absl::Status Evaluator::print(const Value& value) {
  TANDEM_ASSIGN(const TextPtr text, to_text(value));
  TANDEM_TRY(budget_.charge(text->bytes.size() / 32));
  out_->append(*text);
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    TANDEM_ASSIGN(const Value condition, eval(*branch.condition));
    if (truthy(condition)) return execute(branch.body);
  }
  return execute(stmt.orelse);
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute_in_scope(const std::vector<Stmt>& body, ScopePtr scope) {
  const Swapped swapped(*this, std::move(scope), out_);
  return execute(body);
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute_scope(const Stmt& stmt) {
  auto scope = std::make_shared<Scope>(scope_);
  for (const auto& [target, expr] : stmt.assignments) {
    TANDEM_ASSIGN(Value value, eval(*expr));
    const Swapped swapped(*this, scope, out_);
    TANDEM_TRY(assign(*target, std::move(value)));
  }
  return execute_in_scope(stmt.body, std::move(scope));
}

absl::StatusOr<Evaluator::Flow> Evaluator::capture(const std::vector<Stmt>& body, Value& text) {
  TextBuilder out;
  const Swapped swapped(*this, std::make_shared<Scope>(scope_), &out);
  TANDEM_ASSIGN(const Flow flow, execute(body));
  TANDEM_ASSIGN(auto captured, out.finish());
  text = Value{std::move(captured)};
  return flow;
}

absl::StatusOr<Evaluator::Flow> Evaluator::execute_capture(const Stmt& stmt) {
  Value text;
  TANDEM_ASSIGN(const Flow flow, capture(stmt.body, text));
  if (flow != Flow::kNext) return flow;
  if (stmt.value != nullptr) {
    std::swap(block_text_, text);
    auto filtered = eval(*stmt.value);
    std::swap(block_text_, text);
    if (!filtered.ok()) return filtered.status();
    text = *std::move(filtered);
  }
  if (stmt.kind == Stmt::Kind::kFilterBlock) {
    TANDEM_TRY(print(text));
  } else {
    TANDEM_TRY(assign(*stmt.target, std::move(text)));
  }
  return Flow::kNext;
}

Value Evaluator::make_macro(const Macro& macro) {
  auto callable = std::make_shared<Callable>();
  callable->name = macro.name;
  callable->macro = &macro;
  callable->scope = scope_;
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return {std::shared_ptr<const Callable>(std::move(callable))};
}

absl::Status Evaluator::execute_call_block(const Stmt& stmt) {
  TANDEM_ASSIGN(const Value callee, eval_base(*stmt.value->args.front()));
  TANDEM_ASSIGN(CallArgs args, eval_args(*stmt.value));
  args.named.emplace_back("caller", make_macro(*stmt.macro));
  TANDEM_ASSIGN(const Value result, call(callee, std::move(args)));
  return print(result);
}

absl::Status Evaluator::assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kName) {
    scope_->set(target.name, std::move(value));
    return absl::OkStatus();
  }
  if (target.kind == Expr::Kind::kAttribute) {
    const Value base = lookup(target.args.front()->name);
    auto* names = base.object<Namespace>();
    if (names == nullptr) return type_error("an attribute can only be set on a namespace");
    if (target.text.front() == '_') return type_error("names of a namespace cannot begin with '_'");
    names->values.set(make_text(target.text), std::move(value));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN(std::vector<Value> items, to_vector(value, budget_));
  if (items.size() != target.args.size()) {
    return type_error(fmt::format("cannot unpack {} values into {} names", items.size(), target.args.size()));
  }
  for (std::size_t i = 0; i < items.size(); ++i) TANDEM_TRY(assign(*target.args[i], std::move(items[i])));
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::run_loop(const Stmt& stmt, const Value& iterable, ScopePtr outer,
                                                    std::int64_t depth0) {
  TANDEM_ASSIGN(Cursor source, Cursor::over(iterable));
  const auto loop = std::make_shared<Loop>(stmt, std::move(source), outer, depth0);
  const auto* sequence = iterable.sequence();
  if (stmt.filter == nullptr && (sequence == nullptr || sequence->sized())) {
    TANDEM_ASSIGN(const std::size_t size, length(iterable));
    loop->num_items = static_cast<std::int64_t>(size);
  }
  bool otherwise = true;
  ScopePtr scope;
  while (true) {
    Value item;
    if (loop->ahead) {
      item = *std::exchange(loop->ahead, std::nullopt);
    } else {
      TANDEM_ASSIGN(const bool more, pull(*loop, item));
      if (!more) break;
    }
    ++loop->index0;
    loop->previous = std::exchange(loop->current, item);
    if (scope != nullptr && scope.use_count() == 1) {
      scope->clear();
    } else {
      scope = std::make_shared<Scope>(outer);
    }
    const Swapped swapped(*this, scope, out_);
    scope->set(kLoopName, Value{loop});
    TANDEM_TRY(assign(*stmt.target, std::move(item)));
    TANDEM_ASSIGN(const Flow flow, execute(stmt.body));
    if (flow == Flow::kBreak) break;
    // As in Jinja, an iteration left early does not count for the else part.
    if (flow == Flow::kNext) otherwise = false;
  }
  if (!otherwise) return Flow::kNext;
  return execute_in_scope(stmt.orelse, std::make_shared<Scope>(std::move(outer)));
}

absl::StatusOr<bool> Evaluator::pull(Loop& loop, Value& item) {
  while (loop.source.next(item)) {
    TANDEM_TRY(budget_.charge(1));
    if (loop.stmt->filter == nullptr) return true;
    const Swapped swapped(*this, std::make_shared<Scope>(loop.outer), out_);
    TANDEM_TRY(assign(*loop.stmt->target, item));
    TANDEM_ASSIGN(const Value condition, eval(*loop.stmt->filter));
    if (truthy(condition)) return true;
  }
  return false;
}

Result Evaluator::loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name) {
  if (name == "index") return make_int(loop->index0 + 1);
  if (name == "index0") return make_int(loop->index0);
  if (name == "first") return Value{loop->index0 == 0};
  if (name == "depth") return make_int(loop->depth0 + 1);
  if (name == "depth0") return make_int(loop->depth0);
  if (name == "previtem") return loop->index0 == 0 ? make_undefined("there is no previous item") : loop->previous;
  if (name == "last" || name == "nextitem") {
    if (!loop->ahead) {
      Value item;
      TANDEM_ASSIGN(const bool more, pull(*loop, item));
      if (more) loop->ahead = std::move(item);
    }
    if (name == "last") return Value{!loop->ahead.has_value()};
    return loop->ahead ? *loop->ahead : make_undefined("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    if (!loop->num_items) {  // the rest has to be looked at first
      std::vector<Value> rest;
      while (true) {
        Value item;
        TANDEM_ASSIGN(const bool more, pull(*loop, item));
        if (!more) break;
        rest.push_back(std::move(item));
      }
      loop->num_items = loop->index0 + 1 + (loop->ahead ? 1 : 0) + static_cast<std::int64_t>(rest.size());
      TANDEM_ASSIGN(const Value list, make_sequence(std::move(rest)));
      TANDEM_ASSIGN(loop->source, Cursor::over(list));
    }
    const std::int64_t past = name == "length" ? 0 : name == "revindex" ? loop->index0 : loop->index0 + 1;
    return make_int(*loop->num_items - past);
  }
  if (name == "cycle" || name == "changed") {
    loops_.push_back(loop);
    return make_method(Value{loop}, name, find_method(Value{loop}, name));
  }
  return make_undefined(fmt::format("loop has no attribute '{}'", name));
}

Result Evaluator::recurse(const Loop& loop, const CallArgs& args) {
  if (!loop.stmt->recursive) return type_error("only a loop marked 'recursive' can be called");
  if (args.positional.size() != 1 || !args.named.empty()) return type_error("loop() takes one iterable");
  const Depth depth(*this);
  TANDEM_TRY(depth.check());
  TextBuilder out;
  const Swapped swapped(*this, loop.outer, &out);
  TANDEM_TRY(run_loop(*loop.stmt, args.positional.front(), loop.outer, loop.depth0 + 1).status());
  TANDEM_ASSIGN(auto text, out.finish());
  return Value{std::move(text)};
}

}  // namespace tandem::jinja
