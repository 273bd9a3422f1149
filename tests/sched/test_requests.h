// Requests for scheduler tests, whose prompts follow from their ids, and the output that a lane without faults gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "sched/scheduler.h"
#include "support/fake_kv.h"

namespace tandem::test {

inline constexpr std::uint32_t kBlockTokens = 4;

inline void set_prompt(SequenceRequest& request, std::vector<TokenId> tokens) {
  request.prompt = std::make_shared<const PromptFacts>(
      make_prompt_facts(std::move(tokens), request.sampling, std::nullopt, kBlockTokens));
}

inline SequenceRequest make_request(std::uint64_t id, std::size_t prompt_tokens, std::uint32_t max_tokens) {
  SequenceRequest request;
  request.id = SequenceId{id};
  std::vector<TokenId> prompt;
  for (std::size_t i = 0; i < prompt_tokens; ++i) {
    prompt.push_back(static_cast<TokenId>((id * 131 + i * 7) % kFakeVocab));
  }
  set_prompt(request, std::move(prompt));
  request.max_tokens = max_tokens;
  request.arrival_us = steady_now_us();
  return request;
}

inline std::vector<TokenId> expected_output(const SequenceRequest& request) {
  std::vector<TokenId> tokens = request.prompt->tokens;
  const std::size_t prompt_tokens = tokens.size();
  while (tokens.size() < prompt_tokens + request.max_tokens) tokens.push_back(fake_next(tokens));
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt_tokens), tokens.end()};
}

// Submits as an engine does.
inline absl::Status submit_prepared(Scheduler& scheduler, std::vector<SequenceRequest> requests,
                                    std::optional<std::string_view> salt) {
  for (SequenceRequest& request : requests) {
    request.prompt = scheduler.prepare(request.prompt->tokens, request.sampling, salt);
  }
  return scheduler.submit(std::move(requests));
}

}  // namespace tandem::test
