// What an owner's memory was made for, in a region of its own: written by the owner's first server and compared by each
// later one, so that nobody reads blocks or weights as what they are not. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "memory/prefix_key.h"
#include "tandem/types.h"

namespace tandem {

struct PoolRecord {
  static constexpr std::uint64_t kMagic = 0x54444d504f4f4c31;
  std::uint64_t magic = kMagic;
  std::uint32_t num_blocks = 0;
  std::int32_t block_tokens = 0;
  std::uint64_t block_bytes = 0;
  PrefixKey model;  // a hash of all that tells its files from others'
  DType kv_dtype = DType::kF16;
  char model_path[1023] = {};  // for messages alone
};

// The record that another process wrote; FailedPrecondition when this is not one of our version.
absl::StatusOr<PoolRecord> read_pool_record(std::span<const std::byte> region);

// What a server needs of the memory; absent: whatever it is.
struct PoolDemand {
  PrefixKey model;
  std::string model_path;
  std::optional<std::int32_t> block_tokens;
  std::optional<DType> kv_dtype;
  std::optional<std::uint64_t> num_blocks;
};

// FailedPrecondition names both values and the remedy.
absl::Status check_pool_record(const PoolRecord& record, const PoolDemand& demand);

}  // namespace tandem
