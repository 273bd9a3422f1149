#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "fmt/core.h"

#include "text/jinja/eval.h"
#include "text/jinja/parser.h"

namespace tandem {

using jinja::Origin;
using jinja::Value;

namespace {

// Clients call a message's reasoning `reasoning_content`; some templates read `thinking` instead.
enum class Reasoning : std::uint8_t { kAsSent, kAsThinking };

}  // namespace

struct ChatTemplate::Parsed {
  std::shared_ptr<const jinja::Template> root;
  Reasoning reasoning = Reasoning::kAsSent;
  std::string bos_token;
  std::string eos_token;
};

namespace {

constexpr std::array<std::string_view, 4> kOwnVariables = {"messages", "tools", "documents", "add_generation_prompt"};

Value user_text(std::string_view text) { return jinja::make_text(text, Origin::kUser); }

// Templates make control tokens of the known roles ('<|' + role + '|>'), so these are not the user's text.
Value role_text(const std::string& role) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "user", "assistant", "tool", "developer"};
  const bool known = std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
  return jinja::make_text(role, known ? Origin::kTemplate : Origin::kUser);
}

void put(jinja::Dict& dict, std::string_view key, Value value) { dict.set(jinja::make_text(key), std::move(value)); }

// A copy of `dict` whose entry `key` is `value`, in its old place or at the end.
jinja::Result with_entry(const jinja::Dict& dict, std::string_view key, Value value) {
  jinja::Dict copy;
  for (const auto& [name, old] : dict.entries()) copy.set(name, old);
  put(copy, key, std::move(value));
  return jinja::make_dict(std::move(copy));
}

// OpenAI sends the arguments of a call as text, templates expect a mapping; what is none stays text.
jinja::Result call_with_mapping(const Value& call) {
  const Value* function = call.dict() == nullptr ? nullptr : call.dict()->find("function");
  if (function == nullptr || function->dict() == nullptr) return call;
  const Value* arguments = function->dict()->find("arguments");
  Value mapping = arguments == nullptr ? Value{jinja::None{}} : *arguments;
  const jinja::Text* text = mapping.text();
  if (mapping.is<jinja::None>() || (text != nullptr && text->bytes.empty())) {
    TANDEM_ASSIGN(mapping, jinja::make_dict({}));
  } else if (text != nullptr) {
    auto parsed = jinja::parse_json(text->bytes);
    if (parsed.ok() && parsed->dict() != nullptr) mapping = *std::move(parsed);
  }
  TANDEM_ASSIGN(Value changed, with_entry(*function->dict(), "arguments", std::move(mapping)));
  return with_entry(*call.dict(), "function", std::move(changed));
}

jinja::Result calls_with_mappings(const Value& calls) {
  if (calls.sequence() == nullptr) return calls;
  std::vector<Value> changed;
  for (const Value& call : calls.sequence()->items) {
    TANDEM_ASSIGN(Value value, call_with_mapping(call));
    changed.push_back(std::move(value));
  }
  return jinja::make_sequence(std::move(changed));
}

// The message with its fields in the client's order; what is null is left out.
jinja::Result message_value(const ChatMessage& message, std::string_view content_tag, Reasoning reasoning) {
  jinja::Dict entry;
  Value content = user_text(message.content + std::string(content_tag));
  if (message.fields_json.empty()) {
    put(entry, "role", role_text(message.role));
    put(entry, "content", std::move(content));
    return jinja::make_dict(std::move(entry));
  }
  TANDEM_ASSIGN(const Value sent, jinja::parse_json(message.fields_json));
  if (sent.dict() == nullptr) return request_error("a message's fields are not a JSON object", "messages");
  for (const auto& [key, value] : sent.dict()->entries()) {
    const std::string_view name = key.text()->bytes;
    if (name == "role") {
      entry.set(key, role_text(message.role));
    } else if (name == "content") {
      entry.set(key, content);
    } else if (name == "tool_calls") {
      TANDEM_ASSIGN(Value calls, calls_with_mappings(value));
      if (!calls.is<jinja::None>()) entry.set(key, std::move(calls));
    } else if (!value.is<jinja::None>()) {
      entry.set(key, value);
    }
  }
  if (entry.find("content") == nullptr) put(entry, "content", std::move(content));
  if (reasoning == Reasoning::kAsThinking && entry.find("thinking") == nullptr) {
    if (const Value* text = entry.find("reasoning_content"); text != nullptr) put(entry, "thinking", *text);
  }
  return jinja::make_dict(std::move(entry));
}

absl::StatusOr<Value> json_value(const std::string& json, std::string_view param, std::string_view what, bool object) {
  auto value = jinja::parse_json(json);
  if (!value.ok()) return request_error(fmt::format("{} is {}", what, message(value.status())), param);
  if ((object ? value->dict() != nullptr : value->sequence() != nullptr)) return *std::move(value);
  return request_error(fmt::format("{} is not a JSON {}", what, object ? "object" : "array"), param);
}

absl::Status define_kwargs(jinja::Evaluator& evaluator, const std::string& json) {
  if (json.empty()) return absl::OkStatus();
  constexpr std::string_view kParam = "chat_template_kwargs";
  TANDEM_ASSIGN(const Value kwargs, json_value(json, kParam, kParam, true));
  for (const auto& [key, value] : kwargs.dict()->entries()) {
    const std::string& name = key.text()->bytes;
    if (std::find(kOwnVariables.begin(), kOwnVariables.end(), name) != kOwnVariables.end()) {
      return request_error(fmt::format("'{}' cannot be set by {}; use the request's own field", name, kParam), kParam);
    }
    evaluator.define(name, value);
  }
  return absl::OkStatus();
}

// A text that marks the end of the last message's content and occurs nowhere in the request.
std::string unique_tag(const ChatPrompt& prompt) {
  for (int i = 0;; ++i) {
    std::string tag = fmt::format("end-of-content-{}", i);
    const auto in = [&](const std::string& text) { return text.find(tag) != std::string::npos; };
    const bool taken = in(prompt.tools_json) || in(prompt.template_kwargs_json) ||
                       std::any_of(prompt.messages.begin(), prompt.messages.end(), [&](const ChatMessage& m) {
                         return in(m.content) || in(m.role) || in(m.fields_json);
                       });
    if (!taken) return tag;
  }
}

std::string_view stripped(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Ends the prompt behind the last message's content, so that the model goes on with it.
absl::Status cut_behind_content(const ChatPrompt& prompt, const std::string& tag, RenderedPrompt& rendered) {
  const std::size_t at = rendered.text.rfind(tag);
  if (at == std::string::npos || rendered.text.find(stripped(prompt.messages.back().content)) == std::string::npos) {
    return request_error(
        "the chat template does not show the final message's content as it is, so that "
        "continue_final_message cannot be done; leave it out",
        "continue_final_message");
  }
  // The tag ends in a space that only a template which trims its content takes away.
  const bool trimmed = rendered.text.compare(at + tag.size(), 1, " ") != 0;
  std::size_t end = at;
  if (trimmed) {
    end =
        jinja::strip(*jinja::make_text_ptr(std::string_view(rendered.text).substr(0, at)), nullptr, jinja::Side::kRight)
            ->bytes.size();
  }
  rendered.text.resize(end);
  auto& spans = rendered.user_spans;
  while (!spans.empty() && spans.back().begin >= end) spans.pop_back();
  if (!spans.empty()) spans.back().end = std::min(spans.back().end, end);
  return absl::OkStatus();
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::create(const std::string& source, std::string bos_token,
                                                                   std::string eos_token) {
  auto parsed = std::make_unique<Parsed>();
  TANDEM_ASSIGN(parsed->root, jinja::parse(source));
  const auto reads = [&source](const char* field) { return source.find(field) != std::string::npos; };
  if (reads("thinking") && !reads("reasoning_content")) parsed->reasoning = Reasoning::kAsThinking;
  parsed->bos_token = std::move(bos_token);
  parsed->eos_token = std::move(eos_token);
  return std::make_unique<ChatTemplate>(std::move(parsed));
}

absl::StatusOr<RenderedPrompt> ChatTemplate::render(const ChatPrompt& prompt,
                                                    std::chrono::system_clock::time_point now) const {
  const bool continues = prompt.continue_final_message;
  if (continues && prompt.messages.empty()) {
    return request_error("continue_final_message is set, but there is no message", "messages");
  }
  const std::string tag = continues ? unique_tag(prompt) : "";
  jinja::Evaluator evaluator(*parsed_->root, jinja::Limits{}, now);
  std::vector<Value> messages;
  for (const ChatMessage& message : prompt.messages) {
    const bool last = &message == &prompt.messages.back();
    auto value = message_value(message, continues && last ? tag + " " : "", parsed_->reasoning);
    if (!value.ok()) return request_error(tandem::message(value.status()), "messages");
    messages.push_back(*std::move(value));
  }
  auto list = jinja::make_sequence(std::move(messages));
  if (!list.ok()) return request_error(message(list.status()), "messages");
  evaluator.define("messages", *std::move(list));
  Value tools{jinja::None{}};
  if (!prompt.tools_json.empty()) {
    TANDEM_ASSIGN(tools, json_value(prompt.tools_json, "tools", "tools", false));
  }
  evaluator.define("tools", std::move(tools));
  evaluator.define("documents", Value{jinja::None{}});
  evaluator.define("add_generation_prompt", Value{prompt.add_generation_prompt && !continues});
  evaluator.define("bos_token", jinja::make_text(parsed_->bos_token));
  evaluator.define("eos_token", jinja::make_text(parsed_->eos_token));
  TANDEM_TRY(define_kwargs(evaluator, prompt.template_kwargs_json));

  const auto text = evaluator.run();
  if (!text.ok()) return request_error(message(text.status()), "messages");
  RenderedPrompt rendered{.text = (*text)->bytes, .user_spans = (*text)->user};
  if (continues) TANDEM_TRY(cut_behind_content(prompt, tag, rendered));
  return rendered;
}

}  // namespace tandem
