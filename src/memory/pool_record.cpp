#include "memory/pool_record.h"

#include <cstring>

#include "fmt/core.h"

namespace tandem {

absl::StatusOr<PoolRecord> read_pool_record(std::span<const std::byte> region) {
  PoolRecord record;
  if (region.size() >= sizeof(record)) std::memcpy(&record, region.data(), sizeof(record));
  if (region.size() < sizeof(record) || record.magic != PoolRecord::kMagic) {
    return absl::FailedPreconditionError("the owner's memory is of another version; restart it with this binary");
  }
  record.model_path[sizeof(record.model_path) - 1] = '\0';
  return record;
}

absl::Status check_pool_record(const PoolRecord& record, const PoolDemand& demand) {
  constexpr char kRemedy[] = "; leave it out to use what is there, or start another owner";
  if (record.model != demand.model) {
    const bool same_path = demand.model_path == record.model_path;
    return absl::FailedPreconditionError(
        same_path ? fmt::format("the owner holds {} as it was before the file changed; start another owner to load it",
                                demand.model_path)
                  : fmt::format("the owner holds the weights of {}, the model asked for is {}; serve that one, or "
                                "start another owner",
                                record.model_path, demand.model_path));
  }
  if (demand.block_tokens && record.block_tokens != *demand.block_tokens) {
    return absl::FailedPreconditionError(fmt::format("the owner's KV blocks have {} tokens, block-tokens is {}{}",
                                                     record.block_tokens, *demand.block_tokens, kRemedy));
  }
  if (demand.kv_dtype && record.kv_dtype != *demand.kv_dtype) {
    return absl::FailedPreconditionError(fmt::format("the owner's KV blocks are {}, kv-dtype is {}{}",
                                                     kv_dtype_word(record.kv_dtype), kv_dtype_word(*demand.kv_dtype),
                                                     kRemedy));
  }
  if (demand.num_blocks && record.num_blocks != *demand.num_blocks) {
    return absl::FailedPreconditionError(
        fmt::format("the owner's KV pool has {} blocks ({} tokens), the size asked for is {} ({} tokens){}",
                    record.num_blocks, std::int64_t{record.num_blocks} * record.block_tokens, *demand.num_blocks,
                    static_cast<std::int64_t>(*demand.num_blocks) * record.block_tokens, kRemedy));
  }
  return absl::OkStatus();
}

}  // namespace tandem
