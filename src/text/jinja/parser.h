// Parses a template's source, once per model.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "text/jinja/tree.h"

namespace tandem::jinja {

// Fails naming the line and the construct.
absl::StatusOr<std::shared_ptr<const Template>> parse(std::string_view source);

}  // namespace tandem::jinja
