// What an Evaluator changes for a part of a render and puts back behind it; for its own sources only.
#pragma once

#include <utility>

#include "text/jinja/eval.h"

namespace tandem::jinja {

// A level of nested evaluation.
class Evaluator::Depth final {
 public:
  explicit Depth(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  ~Depth() { --evaluator_.depth_; }
  absl::Status check() const {
    if (evaluator_.depth_ <= evaluator_.limits_.max_depth) return absl::OkStatus();
    return absl::ResourceExhaustedError("macros, loops and expressions are nested too deeply");
  }

 private:
  Evaluator& evaluator_;
};

// Another scope and output for as long as it lives.
class Evaluator::Swapped final {
 public:
  Swapped(Evaluator& evaluator, ScopePtr scope, TextBuilder* out)
      : evaluator_(evaluator),
        scope_(std::exchange(evaluator.scope_, std::move(scope))),
        out_(std::exchange(evaluator.out_, out)) {}
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;
  ~Swapped() {
    evaluator_.scope_ = std::move(scope_);
    evaluator_.out_ = out_;
  }

 private:
  Evaluator& evaluator_;
  ScopePtr scope_;
  TextBuilder* out_;
};

}  // namespace tandem::jinja
