#include "api/openai_messages.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr std::size_t kMaxMessages = 4096;
constexpr std::array<std::string_view, 6> kRoles = {"system", "user", "assistant", "tool", "developer", "function"};

absl::Status missing(const std::string& param) {
  return request_error(fmt::format("Missing required parameter: '{}'.", param), param, "missing_required_parameter");
}

absl::StatusOr<std::string> join_parts(const Json& parts, const std::string& param) {
  if (parts.empty()) return value_error(param, "empty array. Expected at least one text part.", "empty_array");
  std::string text;
  bool first = true;
  for (const Json& part : parts) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      return value_error(param, "every content part must be an object with a string 'type'.", "invalid_type");
    }
    if (*type != "text") {
      return value_error(param, fmt::format("content parts of type '{}' are not supported; this model reads text only.",
                                            shortened(type->get_ref<const std::string&>())));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) {
      return value_error(param, "a part of type 'text' needs a string 'text'.", "invalid_type");
    }
    if (!std::exchange(first, false)) text.push_back('\n');
    text += value->get_ref<const std::string&>();
  }
  return text;
}

absl::StatusOr<std::string> parse_content(const Fields& fields, std::string_view role) {
  const std::string param = fields.param("content");
  const Json* content = fields.find("content");
  if (content == nullptr) {
    // An assistant that only called tools said nothing; for anybody else a missing text is a mistake.
    if (role == "assistant") return std::string();
    return missing(param);
  }
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return join_parts(*content, param);
  return type_error(param, "a string or an array of content parts", *content);
}

absl::StatusOr<ToolCall> parse_tool_call(const Json& value, const std::string& param) {
  if (!value.is_object()) return type_error(param, "an object", value);
  const Fields fields(value, param + ".");
  ToolCall call;
  TANDEM_TRY(fields.read("id", call.id));
  std::string type = "function";
  TANDEM_TRY(fields.read("type", type));
  if (type != "function") return value_error(fields.param("type"), "only 'function' is supported.");
  const Json* function = fields.find("function");
  if (function == nullptr) return missing(fields.param("function"));
  if (!function->is_object()) return type_error(fields.param("function"), "an object", *function);
  const Fields inner(*function, fields.param("function") + ".");
  TANDEM_TRY(inner.read("name", call.name));
  if (call.name.empty()) return missing(inner.param("name"));
  const Json* arguments = inner.find("arguments");
  if (arguments == nullptr) {
    call.arguments_json = "{}";
  } else if (arguments->is_string()) {
    call.arguments_json = arguments->get<std::string>();
  } else if (arguments->is_object()) {
    call.arguments_json = arguments->dump(-1, ' ', false, Json::error_handler_t::replace);
  } else {
    return type_error(inner.param("arguments"), "a string", *arguments);
  }
  return call;
}

absl::Status parse_tool_calls(const Fields& fields, ChatMessage& message) {
  const Json* calls = fields.find("tool_calls");
  if (calls == nullptr) return absl::OkStatus();
  const std::string param = fields.param("tool_calls");
  if (!calls->is_array()) return type_error(param, "an array of tool calls", *calls);
  if (!calls->empty() && message.role != "assistant")
    return value_error(param, "only an assistant message may hold tool calls.");
  for (std::size_t i = 0; i < calls->size(); ++i) {
    TANDEM_ASSIGN(ToolCall call, parse_tool_call((*calls)[i], fmt::format("{}[{}]", param, i)));
    message.tool_calls.push_back(std::move(call));
  }
  return absl::OkStatus();
}

absl::Status read_optional(const Fields& fields, std::string_view name, std::optional<std::string>& out) {
  if (fields.find(name) == nullptr) return absl::OkStatus();
  return fields.read(name, out.emplace());
}

absl::StatusOr<ChatMessage> parse_message(const Json& value, const std::string& param) {
  if (!value.is_object()) return type_error(param, "an object", value);
  const Fields fields(value, param + ".");
  ChatMessage message;
  TANDEM_TRY(fields.read("role", message.role));
  if (fields.find("role") == nullptr) return missing(fields.param("role"));
  if (std::ranges::find(kRoles, message.role) == kRoles.end()) {
    return request_error(
        fmt::format("Invalid value: '{}'. Supported values are: 'system', 'developer', 'user', 'assistant', "
                    "'tool', and 'function'.",
                    shortened(message.role)),
        fields.param("role"), "invalid_value");
  }
  TANDEM_ASSIGN(message.content, parse_content(fields, message.role));
  TANDEM_TRY(read_optional(fields, "name", message.name));
  TANDEM_TRY(read_optional(fields, "reasoning_content", message.reasoning_content));
  TANDEM_TRY(read_optional(fields, "tool_call_id", message.tool_call_id));
  TANDEM_TRY(parse_tool_calls(fields, message));
  return message;
}

}  // namespace

absl::StatusOr<std::vector<ChatMessage>> parse_messages(const Fields& fields) {
  const Json* value = fields.find("messages");
  if (value == nullptr) return missing("messages");
  if (!value->is_array()) return type_error("messages", "an array of objects", *value);
  if (value->empty()) {
    return value_error("messages",
                       "empty array. Expected an array with minimum length 1, but got an empty array instead.",
                       "empty_array");
  }
  if (value->size() > kMaxMessages) {
    return value_error(
        "messages",
        fmt::format("array too long. Expected at most {} messages, but got {}.", kMaxMessages, value->size()),
        "array_above_max_length");
  }
  std::vector<ChatMessage> messages;
  messages.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    TANDEM_ASSIGN(ChatMessage message, parse_message((*value)[i], fmt::format("messages[{}]", i)));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace tandem
