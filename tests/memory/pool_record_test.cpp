#include "memory/pool_record.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/status.h"

namespace tandem {
namespace {

PoolRecord some_record() {
  PoolRecord record;
  record.num_blocks = 64;
  record.block_tokens = 16;
  record.block_bytes = 4096;
  record.model = {1, 2};
  record.kv_dtype = DType::kQ8_0;
  std::strcpy(record.model_path, "one.gguf");
  return record;
}

PoolDemand some_demand() {
  return {.model = {1, 2}, .model_path = "one.gguf", .block_tokens = {}, .kv_dtype = {}, .num_blocks = {}};
}

void expect_refused(const PoolDemand& demand, std::initializer_list<std::string_view> parts) {
  const absl::Status status = check_pool_record(some_record(), demand);
  ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string_view part : parts) {
    EXPECT_NE(message(status).find(part), std::string_view::npos) << message(status);
  }
}

TEST(PoolRecord, is_read_back_from_a_region_of_its_size) {
  std::array<std::byte, sizeof(PoolRecord)> region = {};
  EXPECT_FALSE(read_pool_record(region).ok()) << "nobody wrote it";
  const PoolRecord record = some_record();
  std::memcpy(region.data(), &record, sizeof(record));
  const absl::StatusOr<PoolRecord> read = read_pool_record(region);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->num_blocks, 64U);
  EXPECT_STREQ(read->model_path, "one.gguf");
  EXPECT_FALSE(read_pool_record(std::span(region).first(sizeof(PoolRecord) - 1)).ok());
}

TEST(PoolRecord, gives_what_is_not_asked_for) {
  EXPECT_TRUE(check_pool_record(some_record(), some_demand()).ok());
  PoolDemand demand = some_demand();
  demand.block_tokens = 16;
  demand.kv_dtype = DType::kQ8_0;
  demand.num_blocks = 64;
  demand.model_path = "elsewhere/one.gguf";
  EXPECT_TRUE(check_pool_record(some_record(), demand).ok());
}

TEST(PoolRecord, refuses_other_demands_and_names_both_values) {
  PoolDemand demand = some_demand();
  demand.model = {1, 3};
  expect_refused(demand, {"one.gguf", "changed"});
  demand.model_path = "two.gguf";
  expect_refused(demand, {"one.gguf", "two.gguf"});
  demand = some_demand();
  demand.block_tokens = 32;
  expect_refused(demand, {"16 tokens", "block-tokens is 32", "leave it out", "another owner"});
  demand = some_demand();
  demand.kv_dtype = DType::kBF16;
  expect_refused(demand, {"q8_0", "kv-dtype is bf16", "leave it out"});
  demand = some_demand();
  demand.num_blocks = std::uint64_t{1} << 40;
  expect_refused(demand, {"64 blocks", "1099511627776"});
}

}  // namespace
}  // namespace tandem
