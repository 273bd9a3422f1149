// Engine events as OpenAI reply bytes: chunks of a stream, or one object at the end. Written by hand, no JSON tree.
// Owned by the HTTP connection (or a test), used on its thread; knows no sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "api/openai.h"
#include "tandem/engine.h"

namespace tandem {

std::string models_json(const ModelInfo& model);
std::string model_json(const ModelInfo& model);

// Collects the events of one ApiCall. Stream: take_events() gives whole SSE events ("data: ...\n\n") as they come.
// Otherwise body() is the reply once done(). A failure is reported by status(), and what it looks like on the wire is
// the caller's choice: an HTTP status while nothing was sent, error_event() after that.
class ApiReply final {
 public:
  // `call` without its requests' use: prompts are read for echo. `model` and `tokenizer` outlive the reply.
  ApiReply(ApiCall call, const ModelInfo& model, const Tokenizer& tokenizer);

  void on_event(std::size_t prompt_idx, const Event& event);
  void fail(absl::Status status);
  // Lets a stream begin before its first text: writes the opening chunk of every choice.
  void open();

  bool streaming() const { return stream_; }
  bool started() const { return started_; }  // some text, an end or an opening chunk exists
  bool done() const { return status_.ok() && prompts_left_ == 0; }
  const absl::Status& status() const { return status_; }
  std::optional<std::int32_t> lowered_priority() const { return call_.lowered_priority; }

  std::string take_events();
  std::string body() const;
  std::string error_event() const;

 private:
  // Log-probabilities written so far: of the next chunk in a stream, of everything otherwise.
  struct Logprobs {
    std::string entries;  // chat: the objects of "content"; completions: "tokens"
    std::string values;   // completions only, from here on
    std::string tops;
    std::string offsets;
    bool empty() const { return entries.empty(); }
  };
  struct Choice {
    bool opened = false;
    std::string text;             // not kept in a stream
    std::size_t text_chars = 0;   // code points so far, text_offset's unit
    Logprobs logprobs;
    std::optional<FinishEvent> finish;
  };
  struct PromptState {
    std::vector<TokenId> token_ids;
    std::vector<TokenInfo> scores;
    bool done = false;
  };

  void on_text(std::size_t prompt_idx, const TextEvent& event);
  void on_finish(std::size_t prompt_idx, const FinishEvent& event);
  void on_done(std::size_t prompt_idx, const DoneEvent& event);
  Choice* choice_of(std::size_t prompt_idx, std::uint32_t choice, std::size_t& index);
  void open_choice(std::size_t index);
  void add_echo(std::size_t index, std::string& text);
  void add_logprobs(Choice& choice, const std::vector<TokenInfo>& tokens);
  enum class Shown : std::uint8_t { kNo, kYes };  // whether the token's text stands in the reply
  void add_completion_logprob(Choice& choice, const TokenInfo& token, bool scored, Shown shown);
  Shown shown(TokenId id) const { return is_hidden(id) ? Shown::kNo : Shown::kYes; }
  bool is_hidden(TokenId id) const;

  void write_chunk(std::size_t index, std::string_view delta, Choice& choice, const FinishEvent* finish);
  void write_logprobs(std::string& out, const Logprobs& logprobs) const;
  void write_finish(std::string& out, const FinishEvent* finish) const;
  void write_usage(std::string& out) const;
  void write_identity(std::string& out, std::string_view object) const;

  const ApiCall call_;
  const ModelInfo& model_;
  const Tokenizer& tokenizer_;
  const bool stream_;
  const std::string id_;
  const std::int64_t created_;
  std::string chunk_head_;  // what every chunk begins with, up to the choice's index
  std::vector<PromptState> prompts_;
  std::vector<Choice> choices_;
  std::size_t prompts_left_;
  bool started_ = false;
  Usage usage_;
  absl::Status status_;
  std::string events_;
};

}  // namespace tandem
