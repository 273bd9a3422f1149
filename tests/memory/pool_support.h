// A ledger in memory of either kind, and what every ledger test asserts in the end.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "ipc/shared_memory.h"
#include "memory/kv_pool.h"

namespace tandem {

class TestLedger final {
 public:
  TestLedger(MemoryKind kind, std::uint32_t num_blocks) : ledger_(kind, Ledger::bytes(num_blocks)) {
    EXPECT_TRUE(Ledger::init(ledger_.bytes(), num_blocks).ok());
  }
  std::unique_ptr<KvPool> open(LaneId holder = kSchedulerHolder, std::uint32_t decode_reserve = 0) const {
    return open({.holder = holder, .decode_reserve_blocks = decode_reserve, .prefix_table = {}});
  }
  std::unique_ptr<KvPool> open(const KvPoolOptions& options) const {
    return KvPool::create(ledger_.bytes(), options).value();
  }
  std::span<std::byte> bytes() const { return ledger_.bytes(); }
  KvPoolUsage usage() const { return read_kv_usage(ledger_.bytes()).value(); }
  std::uint32_t budget() const { return Ledger::open(ledger_.bytes()).value().budget(); }

 private:
  TestMemory ledger_;
};

// Neither a block nor a unit of budget is lost or doubled: exactly `held` are held, the rest can all be reserved.
inline void expect_exact(const TestLedger& ledger, KvPool& pool, std::uint32_t held) {
  const KvPoolUsage usage = ledger.usage();
  EXPECT_EQ(usage.held, held);
  EXPECT_EQ(usage.retiring, 0U);
  EXPECT_EQ(usage.free, usage.total - held);
  EXPECT_EQ(ledger.budget(), usage.free);
  EXPECT_TRUE(pool.reserve(SequenceId{1}, usage.free, Phase::kDecode).ok());
  EXPECT_FALSE(pool.reserve(SequenceId{1}, usage.free + 1, Phase::kDecode).ok());
}

}  // namespace tandem
