// The types that every layer shares: ids, element types, phases, shares. Plain values without behaviour.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/words.h"

namespace tandem {

using TokenId = std::int32_t;

// A distinct integer type per kind of id, so that a block never passes for a lane.
template <class Tag, class T>
struct Id {
  T value{};
  friend constexpr auto operator<=>(Id, Id) = default;
};

using SequenceId = Id<struct SequenceTag, std::uint64_t>;  // unique while one front end runs
using BlockId = Id<struct BlockTag, std::uint32_t>;        // index into the KV pool
using LaneId = Id<struct LaneTag, std::uint32_t>;          // index into the control page

inline constexpr std::size_t kMaxLanes = 8;
inline constexpr std::uint32_t kMaxLookAhead = 8;  // most decode steps queued on a worker beyond the one it is running
inline constexpr std::size_t kMaxTopLogprobs = 20;  // alternatives per token, as in OpenAI's API

// Element types of weights, activations and KV. Quantised ones are GGUF's blocks of 32 values, or of 256 for k...K.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ4_K, kQ6_K };

// The element types that keys and values may have in the pool, as --kv-dtype takes them.
inline constexpr Word<DType> kKvDTypeWords[] = {
    {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"f32", DType::kF32}, {"q8_0", DType::kQ8_0}};
constexpr std::string_view kv_dtype_word(DType dtype) { return word_of(kKvDTypeWords, dtype); }

enum class Phase : std::uint8_t { kPrefill, kDecode };

// Compute a lane may use: units [first, first + count). A unit is a core here, an SM group on a GPU.
// count 0 means every unit of the device.
struct Share {
  std::uint16_t first = 0;
  std::uint16_t count = 0;
  friend constexpr bool operator==(Share, Share) = default;
};

}  // namespace tandem
