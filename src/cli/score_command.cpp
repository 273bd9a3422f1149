// `tandem score`: log-probabilities, logits and greedy continuations of given texts, through the lanes of serving. The
// way to compare this engine with a reference.
#include <deque>
#include <fstream>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/request_future.h"
#include "fmt/core.h"
#include "instance.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

// Lines in flight: enough to share steps, few enough that their logits fit a result.
constexpr std::size_t kWindow = 4;

// One input line on its way: filled by the engine's thread, read when its future is done.
struct Case {
  Request request;
  std::vector<TokenId> prompt;
  PromptScoresEvent scores;
  std::vector<TokenId> generated;
  std::uint32_t greedy_tokens = 0;
  std::future<DoneEvent> done;
};

absl::StatusOr<std::unique_ptr<Case>> parse_case(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  auto parsed = std::make_unique<Case>();
  try {
    if (json.contains("token_ids")) {
      parsed->request.prompt = json.at("token_ids").get<std::vector<TokenId>>();
    } else if (json.contains("text")) {
      parsed->request.prompt = json.at("text").get<std::string>();
    } else {
      return absl::InvalidArgumentError("needs \"token_ids\" or \"text\"");
    }
    parsed->greedy_tokens = json.value("greedy_tokens", 0U);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  Request& request = parsed->request;
  request.sampling.temperature = 0.0F;
  request.stopping.max_tokens = std::max(parsed->greedy_tokens, 1U);
  request.stopping.ignore_eos = true;
  request.score_prompt = true;
  request.return_last_logits = true;
  return parsed;
}

void record(Case& result, const Event& event) {
  if (const auto* prompt = std::get_if<PromptEvent>(&event)) result.prompt = prompt->token_ids;
  if (const auto* scores = std::get_if<PromptScoresEvent>(&event)) result.scores = *scores;
  if (const auto* text = std::get_if<TextEvent>(&event)) {
    for (const TokenInfo& token : text->tokens) result.generated.push_back(token.id);
  }
}

std::string to_line(const Case& result) {
  double sum = 0;
  for (const TokenInfo& score : result.scores.scores) sum -= score.logprob;
  // What follows the last token is the first greedy one.
  std::vector<TokenId> top1 = result.scores.top1;
  if (!result.generated.empty()) top1.push_back(result.generated.front());
  nlohmann::json json;
  json["token_ids"] = result.prompt;
  const std::size_t scored = result.scores.scores.size();
  json["mean_nll"] = scored == 0 ? nlohmann::json(nullptr) : nlohmann::json(sum / static_cast<double>(scored));
  json["top1_per_position"] = top1;
  json["last_logits"] = result.scores.last_logits;
  json["greedy_token_ids"] = std::vector<TokenId>(
      result.generated.begin(),
      result.generated.begin() + std::min<std::ptrdiff_t>(result.greedy_tokens, std::ssize(result.generated)));
  return json.dump();
}

}  // namespace

int score_command(const ServerConfig& config, const ScoreOptions& options) {
  init_logging(config.log_level, config.log_format, "score");
  std::ifstream input(options.input);
  if (!input) {
    TANDEM_LOG(kError, "{}", message(errno_status(fmt::format("open {}", options.input))));
    return 2;
  }
  std::ofstream output(options.output);
  if (!output) {
    TANDEM_LOG(kError, "{}", message(errno_status(fmt::format("create {}", options.output))));
    return 2;
  }
  auto instance = Instance::start(config, [] {});
  if (!instance.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(instance.status()));
    return 1;
  }
  Engine& engine = (*instance)->engine();

  std::deque<std::unique_ptr<Case>> window;
  std::size_t line_number = 0;
  std::size_t written = 0;
  const auto write_first = [&]() -> absl::Status {
    const DoneEvent done = window.front()->done.get();
    if (!done.status.ok()) return annotate(done.status, fmt::format("case {}", written + 1));
    output << to_line(*window.front()) << '\n';
    window.pop_front();
    ++written;
    return absl::OkStatus();
  };
  absl::Status status;
  for (std::string line; status.ok() && std::getline(input, line);) {
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto parsed = parse_case(line);
    if (!parsed.ok()) {
      status = annotate(parsed.status(), fmt::format("{}:{}", options.input, line_number));
      break;
    }
    window.push_back(*std::move(parsed));
    Case& added = *window.back();
    added.done =
        start_request(engine, std::move(added.request), [&added](const Event& event) { record(added, event); });
    if (window.size() >= kWindow) status = write_first();
  }
  while (status.ok() && !window.empty()) status = write_first();
  for (const auto& pending : window) pending->done.wait();  // their sinks still point at them
  if (!status.ok()) {
    TANDEM_LOG(kError, "{}", message(status));
    return 1;
  }
  output.flush();
  if (!output) {
    TANDEM_LOG(kError, "cannot write {}", options.output);
    return 1;
  }
  TANDEM_LOG(kInfo, "{} cases scored into {}", written, options.output);
  return 0;
}

}  // namespace tandem
