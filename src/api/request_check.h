// The one check of a request, with the one set of limits for every front end. The engine calls it at the beginning of
// submit(); a front end maps its fields to a Request and says a refusal in its own form. Refusals name fields as the
// Request does, `messages[2].role` for one of a message. What depends on the prompt's length in tokens is the engine's
// own business. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "api/request_error.h"
#include "tandem/request.h"
#include "tandem/tokenizer.h"
#include "tandem/types.h"

namespace tandem::limits {

inline constexpr NumberRange kTemperature{0.0F, 2.0F};
inline constexpr NumberRange kTopP{0.0F, 1.0F};
inline constexpr IntegerRange kTopK{-1, std::numeric_limits<std::int32_t>::max()};  // -1 and 0: off
inline constexpr NumberRange kMinP{0.0F, 1.0F};
inline constexpr NumberRange kRepetitionPenalty{0.01F, 10.0F};
inline constexpr NumberRange kPresencePenalty{-2.0F, 2.0F};
inline constexpr NumberRange kFrequencyPenalty{-2.0F, 2.0F};
inline constexpr NumberRange kLogitBias{-100.0F, 100.0F};
inline constexpr IntegerRange kMaxTokens{1, std::numeric_limits<std::uint32_t>::max()};  // 0 too: see Request::echo
inline constexpr IntegerRange kMinTokens{0, std::numeric_limits<std::uint32_t>::max()};
inline constexpr IntegerRange kNumChoices{1, 128};
inline constexpr IntegerRange kTopLogprobs{0, kMaxTopLogprobs};
inline constexpr IntegerRange kTargetMs{1, 86'400'000};  // one day
inline constexpr IntegerRange kPriority{std::numeric_limits<std::int32_t>::min(),
                                        std::numeric_limits<std::int32_t>::max()};

inline constexpr std::size_t kMessages = 4096;
inline constexpr std::size_t kStops = 16;
inline constexpr std::size_t kStopBytes = 8192;
inline constexpr std::size_t kCacheSaltBytes = 1024;
// Every step's plan carries these.
inline constexpr std::size_t kStopTokens = 1024;
inline constexpr std::size_t kBiases = 1024;

}  // namespace tandem::limits

namespace tandem {

absl::Status check_request(const Request& request, const Tokenizer& tokenizer);
absl::Status check_token(std::string_view field, TokenId token, const Tokenizer& tokenizer);

}  // namespace tandem
