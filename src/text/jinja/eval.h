// Runs a parsed template over variables. One Evaluator is one render on one thread; the template is shared.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/scope.h"
#include "text/jinja/tree.h"

namespace tandem::jinja {

class Evaluator final {
 public:
  using Time = std::chrono::system_clock::time_point;

  Evaluator(const Template& source, const Limits& limits, Time now);
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  ~Evaluator();

  void define(std::string_view name, Value value);
  // The text; an error says what failed and on which line, or just what the template itself raised.
  absl::StatusOr<TextPtr> run();

  // For the built-in functions.
  Budget& budget() { return budget_; }
  Time now() const { return now_; }
  Result call(const Value& callee, CallArgs args);
  Value make_namespace(Dict values);
  absl::Status raise(std::string text);

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };
  class Depth;
  class Swapped;

  absl::StatusOr<Flow> execute(const std::vector<Stmt>& body);
  absl::StatusOr<Flow> execute(const Stmt& stmt);
  absl::StatusOr<Flow> execute_in_scope(const std::vector<Stmt>& body, ScopePtr scope);
  absl::StatusOr<Flow> execute_if(const Stmt& stmt);
  absl::StatusOr<Flow> execute_scope(const Stmt& stmt);
  // Runs the body into a text of its own, unless it is left by break or continue.
  absl::StatusOr<Flow> capture(const std::vector<Stmt>& body, Value& text);
  absl::StatusOr<Flow> execute_capture(const Stmt& stmt);
  absl::Status define_macro(const Stmt& stmt);
  absl::Status execute_call_block(const Stmt& stmt);
  absl::Status print(const Value& value);
  absl::Status assign(const Expr& target, Value value);

  absl::StatusOr<Flow> run_loop(const Stmt& stmt, const Value& iterable, ScopePtr outer, std::int64_t depth0);
  absl::StatusOr<bool> pull(Loop& loop, Value& item);
  Result loop_attribute(const std::shared_ptr<Loop>& loop, std::string_view name);
  Result recurse(const Loop& loop, const CallArgs& args);
  Result call_macro(const Callable& callable, CallArgs args);
  Value make_macro(const Macro& macro);

  Result eval(const Expr& expr);
  Result eval_node(const Expr& expr);
  Result eval_name(const Expr& expr);
  Result eval_base(const Expr& expr);  // what an attribute or a call is of
  Result eval_items(const Expr& expr);
  Result eval_dict(const Expr& expr);
  Result eval_attribute(const Expr& expr);
  Result eval_slice(const Expr& expr);
  Result eval_call(const Expr& expr);
  Result eval_filter(const Expr& expr);
  Result eval_test(const Expr& expr);
  Result eval_concat(const Expr& expr);
  Result eval_compare(const Expr& expr);
  Result eval_conditional(const Expr& expr);
  absl::StatusOr<CallArgs> eval_args(const Expr& expr);
  absl::StatusOr<bool> compare(Comparison comparison, const Value& a, const Value& b);
  Value lookup(NameId id) const;

  const Template& template_;
  const Limits limits_;
  const Time now_;
  Budget budget_;
  ScopePtr scope_;
  TextBuilder* out_ = nullptr;
  Value block_text_;  // input of a filter block's first filter
  int depth_ = 0;
  int failed_line_ = 0;
  bool raised_ = false;
  // What could hold itself: emptied when the render ends.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Loop>> loops_;
};

}  // namespace tandem::jinja
