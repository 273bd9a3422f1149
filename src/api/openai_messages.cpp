#include "api/openai_messages.h"

#include <string>
#include <string_view>
#include <utility>

#include "api/json_as_sent.h"
#include "fmt/core.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

absl::StatusOr<std::string> join_parts(const Json& parts, const std::string& param) {
  if (parts.empty()) return field_error(param, "empty array. Expected at least one text part.", "empty_array");
  std::string text;
  bool first = true;
  for (const Json& part : parts) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      return field_error(param, "every content part must be an object with a string 'type'.", "invalid_type");
    }
    if (*type != "text") {
      return field_error(param, fmt::format("content parts of type '{}' are not supported; this model reads text only.",
                                            shortened(type->get_ref<const std::string&>())));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) {
      return field_error(param, "a part of type 'text' needs a string 'text'.", "invalid_type");
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
    return missing_error(param);
  }
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return join_parts(*content, param);
  return type_error(param, "a string or an array of content parts", *content);
}

absl::Status check_tool_call(const Json& value, const std::string& param) {
  if (!value.is_object()) return type_error(param, "an object", value);
  const Fields fields(value, param + ".");
  std::string id;
  TANDEM_TRY(fields.read("id", id));
  std::string type = "function";
  TANDEM_TRY(fields.read("type", type));
  if (type != "function") return field_error(fields.param("type"), "only 'function' is supported.");
  const Json* function = fields.find("function");
  if (function == nullptr) return missing_error(fields.param("function"));
  if (!function->is_object()) return type_error(fields.param("function"), "an object", *function);
  const Fields inner(*function, fields.param("function") + ".");
  std::string name;
  TANDEM_TRY(inner.read("name", name));
  if (name.empty()) return missing_error(inner.param("name"));
  const Json* arguments = inner.find("arguments");
  if (arguments == nullptr || arguments->is_string() || arguments->is_object()) return absl::OkStatus();
  return type_error(inner.param("arguments"), "a string", *arguments);
}

absl::Status check_tool_calls(const Fields& fields, std::string_view role) {
  const Json* calls = fields.find("tool_calls");
  if (calls == nullptr) return absl::OkStatus();
  const std::string param = fields.param("tool_calls");
  if (!calls->is_array()) return type_error(param, "an array of tool calls", *calls);
  if (!calls->empty() && role != "assistant")
    return field_error(param, "only an assistant message may hold tool calls.");
  for (std::size_t i = 0; i < calls->size(); ++i) {
    TANDEM_TRY(check_tool_call((*calls)[i], fmt::format("{}[{}]", param, i)));
  }
  return absl::OkStatus();
}

// `sent`: the message as text, its keys in the client's order.
absl::StatusOr<ChatMessage> parse_message(const Json& value, const std::string& param, std::string sent) {
  if (!value.is_object()) return type_error(param, "an object", value);
  const Fields fields(value, param + ".");
  ChatMessage message;
  TANDEM_TRY(fields.read("role", message.role));
  if (fields.find("role") == nullptr) return missing_error(fields.param("role"));
  TANDEM_ASSIGN(message.content, parse_content(fields, message.role));
  for (const std::string_view name : {"name", "reasoning_content", "tool_call_id"}) {
    std::string text;
    TANDEM_TRY(fields.read(name, text));
  }
  TANDEM_TRY(check_tool_calls(fields, message.role));
  const bool plain = value.size() == 2 && value.contains("content") && sent.starts_with(R"({"role":)");
  if (!plain) message.fields_json = std::move(sent);
  return message;
}

}  // namespace

absl::StatusOr<std::vector<ChatMessage>> parse_messages(const Fields& fields, std::string_view body) {
  const Json* value = fields.find("messages");
  if (value == nullptr) return missing_error("messages");
  if (!value->is_array()) return type_error("messages", "an array of objects", *value);
  std::vector<std::string> sent = json_as_sent(body, "messages");
  std::vector<ChatMessage> messages;
  messages.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    TANDEM_ASSIGN(ChatMessage message, parse_message((*value)[i], fmt::format("messages[{}]", i), std::move(sent[i])));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace tandem
