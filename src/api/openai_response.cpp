#include "api/openai_response.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <variant>

#include "api/json_text.h"
#include "api/openai_error.h"
#include "api/request_id.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "base/utf8.h"
#include "fmt/format.h"

namespace tandem {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void append_separated(std::string& list, std::string_view item) {
  if (!list.empty()) list.push_back(',');
  list.append(item);
}

std::string fingerprint(const ModelInfo& model) {
  return fmt::format("fp_{:012x}", fnv1a(model.id + '\n' + model.root) >> 16U);
}

void append_bytes(std::string& out, std::string_view bytes) {
  out.push_back('[');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_json_number(out, static_cast<unsigned char>(bytes[i]));
  }
  out.push_back(']');
}

// {"token":...,"logprob":...,"bytes":[...] without the closing brace.
void append_token(std::string& out, std::string_view bytes, float logprob) {
  out.append(R"({"token":)");
  append_json_string(out, bytes);
  out.append(R"(,"logprob":)");
  append_json_logprob(out, logprob);
  out.append(R"(,"bytes":)");
  append_bytes(out, bytes);
}

void append_chat_logprob(std::string& list, const TokenInfo& token) {
  if (!list.empty()) list.push_back(',');
  append_token(list, token.bytes, token.logprob);
  list.append(R"(,"top_logprobs":[)");
  for (std::size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) list.push_back(',');
    append_token(list, token.top[i].bytes, token.top[i].logprob);
    list.push_back('}');
  }
  list.append("]}");
}

std::string byte_name(std::string_view bytes) {
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

// A token as legacy log-probabilities name it: its text, or for parts of characters "bytes:\x.." with every byte.
std::string token_name(std::string_view bytes) { return is_utf8(bytes) ? std::string(bytes) : byte_name(bytes); }

// {"<token name>":logprob,...}: the alternatives, and the chosen token also when it is none of them. Tokens of one text
// keep apart: the chosen one has the text, others are named by their bytes or, if need be, their id.
std::string top_object(const TokenInfo& token) {
  std::vector<std::string> names{token_name(token.bytes)};
  std::string out = "{";
  const auto add = [&out](std::string_view name, float logprob) {
    if (out.size() > 1) out.push_back(',');
    append_json_string(out, name);
    out.push_back(':');
    append_json_logprob(out, logprob);
  };
  const auto taken = [&names](const std::string& name) { return std::ranges::find(names, name) != names.end(); };
  bool has_chosen = false;
  for (const TokenInfo::Alternative& other : token.top) {
    if (other.id == token.id) {
      has_chosen = true;
      add(names.front(), other.logprob);
      continue;
    }
    std::string name = token_name(other.bytes);
    if (taken(name)) name = byte_name(other.bytes);
    if (taken(name)) name = fmt::format("token_id:{}", other.id);
    add(name, other.logprob);
    names.push_back(std::move(name));
  }
  if (!has_chosen) add(names.front(), token.logprob);
  return out + "}";
}

}  // namespace

std::string model_json(const ModelInfo& model) {
  return fmt::format(
      R"({{"id":{0},"object":"model","created":{1},"owned_by":"tandem","root":{2},"parent":null,"max_model_len":{3}}})",
      quoted(model.id), model.created, quoted(model.root.empty() ? model.id : model.root), model.context_length);
}

std::string models_json(const ModelInfo& model) {
  return fmt::format(R"({{"object":"list","data":[{}]}})", model_json(model));
}

ApiReply::ApiReply(ApiCall call, const ModelInfo& model, const Tokenizer& tokenizer)
    : call_(std::move(call)),
      model_(model),
      tokenizer_(tokenizer),
      stream_(call_.stream),
      id_((call_.kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + random_hex128()),
      created_(std::time(nullptr)),
      prompts_(call_.requests.size()),
      choices_(call_.requests.size() * call_.num_choices),
      prompts_left_(call_.requests.size()) {
  chunk_head_ = "data: {";
  write_identity(chunk_head_, call_.kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion");
  chunk_head_ += R"(,"choices":[)";
}

void ApiReply::on_event(std::size_t prompt_idx, const Event& event) {
  if (!status_.ok() || prompt_idx >= prompts_.size()) return;
  PromptState& prompt = prompts_[prompt_idx];
  if (const auto* accepted = std::get_if<PromptEvent>(&event)) {
    prompt.token_ids = accepted->token_ids;
  } else if (const auto* scored = std::get_if<PromptScoresEvent>(&event)) {
    prompt.scores = scored->scores;
  } else if (const auto* text = std::get_if<TextEvent>(&event)) {
    on_text(prompt_idx, *text);
  } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
    on_finish(prompt_idx, *finish);
  } else if (const auto* done = std::get_if<DoneEvent>(&event)) {
    on_done(prompt_idx, *done);
  }
}

void ApiReply::fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ApiReply::open() {
  for (std::size_t i = 0; i < choices_.size(); ++i) open_choice(i);
}

ApiReply::Choice* ApiReply::choice_of(std::size_t prompt_idx, std::uint32_t choice, std::size_t& index) {
  index = prompt_idx * call_.num_choices + choice;
  if (choice < call_.num_choices && !choices_[index].finish) return &choices_[index];
  fail(absl::InternalError(
      fmt::format("the engine sent an event for choice {}, which does not exist or has ended", choice)));
  return nullptr;
}

void ApiReply::on_text(std::size_t prompt_idx, const TextEvent& event) {
  std::size_t index = 0;
  Choice* choice = choice_of(prompt_idx, event.choice, index);
  if (choice == nullptr) return;
  open_choice(index);
  add_logprobs(*choice, event.tokens);
  // Tokens without text wait for the next chunk: a content delta is never empty.
  if (event.text.empty()) return;
  choice->text_chars += call_.kind == ApiKind::kCompletion ? count_code_points(event.text) : 0;
  if (stream_) {
    write_chunk(index, event.text, *choice, nullptr);
  } else {
    choice->text += event.text;
  }
}

void ApiReply::on_finish(std::size_t prompt_idx, const FinishEvent& event) {
  // A cancelled choice did not finish; the DoneEvent that follows says why.
  if (event.reason == FinishReason::kCancelled) return;
  std::size_t index = 0;
  Choice* choice = choice_of(prompt_idx, event.choice, index);
  if (choice == nullptr) return;
  open_choice(index);
  choice->finish = event;
  if (stream_) write_chunk(index, {}, *choice, &event);
}

void ApiReply::on_done(std::size_t prompt_idx, const DoneEvent& event) {
  if (std::exchange(prompts_[prompt_idx].done, true)) return;
  usage_.prompt_tokens += event.usage.prompt_tokens;
  usage_.completion_tokens += event.usage.completion_tokens;
  usage_.cached_tokens += event.usage.cached_tokens;
  if (!event.status.ok()) return fail(event.status);
  const auto first = choices_.begin() + static_cast<std::ptrdiff_t>(prompt_idx * call_.num_choices);
  if (!std::all_of(first, first + call_.num_choices, [](const Choice& choice) { return choice.finish.has_value(); })) {
    return fail(absl::InternalError("the engine ended the request before all of its choices had finished"));
  }
  if (--prompts_left_ > 0 || !stream_) return;
  if (call_.include_usage) {
    events_ += chunk_head_;
    events_ += ']';
    write_usage(events_);
    events_ += "}\n\n";
  }
  events_ += "data: [DONE]\n\n";
}

void ApiReply::open_choice(std::size_t index) {
  Choice& choice = choices_[index];
  if (std::exchange(choice.opened, true)) return;
  started_ = true;
  if (call_.kind == ApiKind::kCompletion) {
    if (!call_.requests[index / call_.num_choices].echo) return;
    std::string text;
    add_echo(index, text);
    if (stream_ && !text.empty()) write_chunk(index, text, choice, nullptr);
    if (!stream_) choice.text = std::move(text);
  } else if (stream_) {
    events_ += chunk_head_ + R"({"index":)";
    append_json_number(events_, index);
    events_ += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])";
    events_ += call_.include_usage ? R"(,"usage":null})"
                                     "\n\n"
                                   : "}\n\n";
  }
}

void ApiReply::add_echo(std::size_t index, std::string& text) {
  const std::size_t prompt_idx = index / call_.num_choices;
  const PromptState& prompt = prompts_[prompt_idx];
  Choice& choice = choices_[index];
  const auto* given = std::get_if<std::string>(&call_.requests[prompt_idx].prompt);
  if (given != nullptr) {
    text = *given;
  } else {
    std::string bytes;
    for (const TokenId id : prompt.token_ids) {
      if (!is_hidden(id)) bytes += tokenizer_.token_bytes(id);
    }
    append_repaired_utf8(text, bytes);
  }
  if (call_.requests[prompt_idx].top_logprobs && !prompt.token_ids.empty()) {
    // A text is echoed as it was given, control tokens and all; only a begin token that the tokenizer added is not in
    // it.
    std::size_t read = 0;
    const auto shown_in_echo = [&](const TokenInfo& token) {
      if (given == nullptr) return shown(token.id);
      if (given->compare(read, token.bytes.size(), token.bytes) != 0) return Shown::kNo;
      read += token.bytes.size();
      return Shown::kYes;
    };
    const TokenId first = prompt.token_ids.front();
    const TokenInfo begin{.id = first, .bytes = std::string(tokenizer_.token_bytes(first)), .logprob = 0.0F, .top = {}};
    add_completion_logprob(choice, begin, false, shown_in_echo(begin));
    for (const TokenInfo& token : prompt.scores) add_completion_logprob(choice, token, true, shown_in_echo(token));
  }
  choice.text_chars = count_code_points(text);
}

bool ApiReply::is_hidden(TokenId id) const {
  return tokenizer_.kind(id) == TokenKind::kControl && !call_.requests.front().show_control_tokens;
}

void ApiReply::add_logprobs(Choice& choice, const std::vector<TokenInfo>& tokens) {
  if (!call_.requests.front().top_logprobs) return;
  // Offsets count from the text before this event; on_text sets the sum anew, so that a token that shows no text
  // (a control token, half a character cut off at the end) moves nothing after it.
  const std::size_t before = choice.text_chars;
  for (const TokenInfo& token : tokens) {
    if (call_.kind == ApiKind::kChat) {
      append_chat_logprob(choice.logprobs.entries, token);
    } else {
      add_completion_logprob(choice, token, true, shown(token.id));
    }
  }
  choice.text_chars = before;
}

void ApiReply::add_completion_logprob(Choice& choice, const TokenInfo& token, bool scored, Shown shown) {
  Logprobs& lists = choice.logprobs;
  append_separated(lists.entries, quoted(token_name(token.bytes)));
  if (scored) {
    std::string value;
    append_json_logprob(value, token.logprob);
    append_separated(lists.values, value);
    append_separated(lists.tops, top_object(token));
  } else {
    // Nothing stands before a prompt's first token, so it has no probability.
    append_separated(lists.values, "null");
    append_separated(lists.tops, "null");
  }
  // A token that goes on with a character begins inside it: the offset of that character.
  const bool continues = !token.bytes.empty() && (static_cast<unsigned char>(token.bytes[0]) & 0xC0U) == 0x80U;
  append_separated(lists.offsets, fmt::to_string(choice.text_chars - (continues && choice.text_chars > 0 ? 1 : 0)));
  if (shown == Shown::kYes) choice.text_chars += count_code_points(token.bytes);
}

std::string ApiReply::take_events() { return std::exchange(events_, {}); }

std::string ApiReply::error_event() const { return "data: " + error_json(http_status(status_), status_) + "\n\n"; }

void ApiReply::write_chunk(std::size_t index, std::string_view delta, Choice& choice, const FinishEvent* finish) {
  events_ += chunk_head_;
  events_ += R"({"index":)";
  append_json_number(events_, index);
  if (call_.kind == ApiKind::kCompletion) {
    events_ += R"(,"text":)";
    append_json_string(events_, delta);
  } else if (delta.empty()) {
    events_ += R"(,"delta":{})";
  } else {
    events_ += R"(,"delta":{"content":)";
    append_json_string(events_, delta);
    events_ += '}';
  }
  write_logprobs(events_, choice.logprobs);
  choice.logprobs = {};
  write_finish(events_, finish);
  events_ += call_.include_usage ? R"(}],"usage":null})"
                                   "\n\n"
                                 : "}]}\n\n";
}

void ApiReply::write_logprobs(std::string& out, const Logprobs& logprobs) const {
  if (logprobs.empty() && !(call_.requests.front().top_logprobs && !stream_)) {
    out += R"(,"logprobs":null)";
  } else if (call_.kind == ApiKind::kChat) {
    out += fmt::format(R"(,"logprobs":{{"content":[{}],"refusal":null}})", logprobs.entries);
  } else {
    out += fmt::format(R"(,"logprobs":{{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                       logprobs.entries, logprobs.values, logprobs.tops, logprobs.offsets);
  }
}

void ApiReply::write_finish(std::string& out, const FinishEvent* finish) const {
  if (finish == nullptr) {
    out += R"(,"finish_reason":null)";
    return;
  }
  out += finish->reason == FinishReason::kLength ? R"(,"finish_reason":"length")" : R"(,"finish_reason":"stop")";
  if (!finish->matched_stop && !finish->matched_stop_token) return;
  const std::string which =
      finish->matched_stop ? quoted(*finish->matched_stop) : fmt::to_string(*finish->matched_stop_token);
  out += fmt::format(R"(,"matched_stop":{0},"stop_reason":{0})", which);
}

void ApiReply::write_usage(std::string& out) const {
  out += fmt::format(
      R"(,"usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
      R"("prompt_tokens_details":{{"cached_tokens":{}}},"completion_tokens_details":{{"reasoning_tokens":0}}}})",
      usage_.prompt_tokens, usage_.completion_tokens, std::uint64_t{usage_.prompt_tokens} + usage_.completion_tokens,
      usage_.cached_tokens);
}

void ApiReply::write_identity(std::string& out, std::string_view object) const {
  out += fmt::format(R"("id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":"{}")", id_, object,
                     created_, quoted(model_.id), fingerprint(model_));
}

std::string ApiReply::body() const {
  std::string out = "{";
  write_identity(out, call_.kind == ApiKind::kChat ? "chat.completion" : "text_completion");
  out += R"(,"choices":[)";
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    out += i > 0 ? R"(,{"index":)" : R"({"index":)";
    append_json_number(out, i);
    out += call_.kind == ApiKind::kChat ? R"(,"message":{"role":"assistant","content":)" : R"(,"text":)";
    append_json_string(out, choice.text);
    if (call_.kind == ApiKind::kChat) out += R"(,"refusal":null})";
    write_logprobs(out, choice.logprobs);
    write_finish(out, choice.finish ? &*choice.finish : nullptr);
    out += '}';
  }
  out += ']';
  write_usage(out);
  out += '}';
  return out;
}

}  // namespace tandem
