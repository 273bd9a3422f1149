// A model's chat template: a conversation in, the prompt's text out, with the parts that came from the request
// marked. Parsed once, immutable, shared by all threads. Roles and their order are the caller's and the template's
// business; content is text already.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tandem/request.h"
#include "tandem/tokenizer.h"

namespace tandem {

struct RenderedPrompt {
  std::string text;
  std::vector<TextSpan> user_spans;  // sorted, disjoint: what the tokenizer must not take for control tokens
};

class ChatTemplate final {
 public:
  // Fails naming the line and the construct that is wrong or not supported. Empty token texts: the model has none.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> create(const std::string& source, std::string bos_token,
                                                              std::string eos_token);
  struct Parsed;  // only create() can make one
  explicit ChatTemplate(std::unique_ptr<const Parsed> parsed);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Every failure is a request error: what the template raises, and what it cannot do with this conversation.
  // `now` is what strftime_now shows.
  absl::StatusOr<RenderedPrompt> render(
      const ChatPrompt& prompt, std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) const;

 private:
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace tandem
