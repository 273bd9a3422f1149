// `tandem generate`: one streamed answer without a server, through the same processes as in serving.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "api/openai.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/instance_run.h"
#include "cli/request_future.h"
#include "fmt/core.h"

namespace tandem {
namespace {

// Stream iterators throw when a read fails, as of a folder; streams set a flag.
absl::StatusOr<std::string> read_file(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& input = path == "-" ? std::cin : file;
  std::ostringstream text;
  if (!file || (input.peek() != EOF && !(text << input.rdbuf())) || input.bad()) {
    return errno_status(fmt::format("read {}", path));
  }
  return text.str();
}

absl::StatusOr<Prompt> make_prompt(const GenerateOptions& options, const Engine& engine) {
  if (!options.messages_file.empty()) {
    TANDEM_ASSIGN(const std::string messages, read_file(options.messages_file));
    const CallContext context{engine.model(), engine.tokenizer(), {}, {}, {}};
    TANDEM_ASSIGN(ApiCall call, parse_chat_call(fmt::format("{{\"messages\":{}}}", messages), context));
    return call.requests.front().prompt;
  }
  if (options.raw) return Prompt(options.prompt);
  ChatPrompt chat;
  ChatMessage message;
  message.role = "user";
  message.content = options.prompt;
  chat.messages.push_back(std::move(message));
  return Prompt(std::move(chat));
}

}  // namespace

int generate_command(const ServerConfig& config, const GenerateOptions& options) {
  init_logging(config.log_level, config.log_format, "generate");
  auto run = InstanceRun::start(config);
  if (!run.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(run.status()));
    return 1;
  }
  (*run)->loaded();
  Engine& engine = (*run)->engine();
  auto prompt = make_prompt(options, engine);
  if (!prompt.ok()) {
    TANDEM_LOG(kError, "{}", message(prompt.status()));
    return 2;
  }
  Request request;
  request.prompt = *std::move(prompt);
  request.sampling.temperature = options.temperature;
  request.sampling.top_p = options.top_p;
  if (options.seed >= 0) request.sampling.seed = static_cast<std::uint64_t>(options.seed);
  request.stopping.max_tokens = options.max_tokens;

  const std::int64_t start_us = steady_now_us();
  std::int64_t first_us = 0;  // written by the sink before it fulfils the future
  const DoneEvent done = (*run)->await(start_request(engine, std::move(request), [&first_us](const Event& event) {
    const auto* text = std::get_if<TextEvent>(&event);
    if (text == nullptr) return;
    if (first_us == 0) first_us = steady_now_us();
    std::fwrite(text->text.data(), 1, text->text.size(), stdout);
    std::fflush(stdout);
  }));
  std::fputc('\n', stdout);
  if (!done.status.ok()) {
    TANDEM_LOG(kError, "{}", message(done.status));
    return (*run)->exit_status();
  }
  const double decode_seconds = static_cast<double>(steady_now_us() - first_us) * 1e-6;
  const double decoded = done.usage.completion_tokens > 0 ? done.usage.completion_tokens - 1.0 : 0.0;
  TANDEM_LOG(kInfo, "{} prompt tokens, {} generated; first token after {} ms, then {:.1f} tokens/s",
             done.usage.prompt_tokens, done.usage.completion_tokens, (first_us - start_us) / 1000,
             decode_seconds > 0 ? decoded / decode_seconds : 0.0);
  return 0;
}

}  // namespace tandem
