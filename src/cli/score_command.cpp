// `tandem score`: log-probabilities, logits and greedy continuations of given texts, through the lanes of serving. The
// way to compare this engine with a reference. Each case of the input gets a line of the output, in the same order: its
// result, or {"error": why}.
#include <algorithm>
#include <deque>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/instance_run.h"
#include "cli/request_future.h"
#include "fmt/core.h"
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

absl::StatusOr<std::vector<TokenId>> parse_token_ids(const nlohmann::json& json) {
  if (!json.is_array()) return absl::InvalidArgumentError("\"token_ids\" is not a list of integers");
  std::vector<TokenId> ids;
  for (const nlohmann::json& id : json) {
    const bool fits = id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() <= INT32_MAX;
    if (!fits) return absl::InvalidArgumentError(fmt::format("token_ids[{}] is not a token id", ids.size()));
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<Case>> parse_case(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError("the line is not a JSON object");
  auto parsed = std::make_unique<Case>();
  if (const auto ids = json.find("token_ids"); ids != json.end()) {
    TANDEM_ASSIGN(parsed->request.prompt, parse_token_ids(*ids));
  } else if (const auto text = json.find("text"); text != json.end()) {
    if (!text->is_string()) return absl::InvalidArgumentError("\"text\" is not a string");
    parsed->request.prompt = text->get<std::string>();
  } else {
    return absl::InvalidArgumentError("the case needs \"token_ids\" or \"text\"");
  }
  if (const auto count = json.find("greedy_tokens"); count != json.end()) {
    const bool fits = count->is_number_unsigned() && count->get<std::uint64_t>() <= UINT32_MAX;
    if (!fits) return absl::InvalidArgumentError("\"greedy_tokens\" is not a number of tokens");
    parsed->greedy_tokens = count->get<std::uint32_t>();
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

nlohmann::json to_json(const Case& result) {
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
  return json;
}

// A line that is no case is a request that was refused.
std::unique_ptr<Case> start_case(Engine& engine, const std::string& line) {
  absl::StatusOr<std::unique_ptr<Case>> parsed = parse_case(line);
  if (!parsed.ok()) {
    auto refused = std::make_unique<Case>();
    std::promise<DoneEvent> done;
    done.set_value({parsed.status(), {}});
    refused->done = done.get_future();
    return refused;
  }
  Case& added = **parsed;
  added.done = start_request(engine, std::move(added.request), [&added](const Event& event) { record(added, event); });
  return *std::move(parsed);
}

struct Tally {
  std::size_t written = 0;
  std::size_t failed = 0;  // of those written
};

// Until the input ends, or a signal, or the output fails.
Tally score_cases(InstanceRun& run, std::istream& input, std::ostream& output) {
  Tally tally;
  std::deque<std::unique_ptr<Case>> window;
  const auto end_first = [&] {
    const std::unique_ptr<Case> first = std::move(window.front());
    window.pop_front();
    const DoneEvent done = run.await(std::move(first->done));
    if (!done.status.ok() && run.ended() == InstanceRun::End::kSignal) return;
    const nlohmann::json json =
        done.status.ok() ? to_json(*first) : nlohmann::json{{"error", std::string(message(done.status))}};
    output << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    ++tally.written;
    if (!done.status.ok()) ++tally.failed;
  };
  for (std::string line; output && run.ended() != InstanceRun::End::kSignal && std::getline(input, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    window.push_back(start_case(run.engine(), line));
    if (window.size() >= kWindow) end_first();
  }
  while (!window.empty()) end_first();
  return tally;
}

int report(const ScoreOptions& options, const InstanceRun& run, const Tally& tally) {
  if (run.ended() == InstanceRun::End::kSignal) {
    TANDEM_LOG(kError, "interrupted after {} cases; {} is incomplete", tally.written, options.output);
    return run.exit_status();
  }
  if (tally.failed > 0) {
    TANDEM_LOG(kError, "{} of {} cases failed; their lines in {} say why", tally.failed, tally.written, options.output);
    return 1;
  }
  TANDEM_LOG(kInfo, "{} cases scored into {}", tally.written, options.output);
  return 0;
}

}  // namespace

int score_command(const ServerConfig& config, const ScoreOptions& options) {
  init_logging(config.log_level, config.log_format, "score");
  std::ifstream input(options.input);
  if (!input || (input.peek() == EOF && input.bad())) {  // a folder opens, but cannot be read
    TANDEM_LOG(kError, "{}", message(errno_status(fmt::format("read {}", options.input))));
    return 2;
  }
  std::ofstream output(options.output);
  if (!output) {
    TANDEM_LOG(kError, "{}", message(errno_status(fmt::format("create {}", options.output))));
    return 2;
  }
  auto run = InstanceRun::start(config);
  if (!run.ok()) {
    TANDEM_LOG(kError, "cannot start: {}", message(run.status()));
    return 1;
  }
  (*run)->loaded();
  const Tally tally = score_cases(**run, input, output);
  if (input.bad()) {
    TANDEM_LOG(kError, "cannot read {} to its end", options.input);
    return 1;
  }
  if (!output.flush()) {
    TANDEM_LOG(kError, "cannot write {}", options.output);
    return 1;
  }
  return report(options, **run, tally);
}

}  // namespace tandem
