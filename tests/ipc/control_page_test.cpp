#include "ipc/control_page.h"

#include <gtest/gtest.h>

#include "ipc/shared_memory.h"

namespace tandem {
namespace {

TEST(ControlPage, is_found_by_those_who_open_it) {
  const TestMemory memory(MemoryKind::kShared, 4096);
  EXPECT_EQ(open_control_page(memory.bytes()).status().code(), absl::StatusCode::kFailedPrecondition);
  ControlPage* made = init_control_page(memory.bytes()).value();
  made->lanes[kMaxLanes - 1].issued_step.store(7);
  ControlPage* opened = open_control_page(memory.bytes()).value();
  EXPECT_EQ(opened->lanes[kMaxLanes - 1].issued_step.load(), 7U);
  EXPECT_EQ(opened->lanes[0].issued_step.load(), 0U);
}

TEST(ControlPage, refuses_memory_that_is_too_small_or_crooked) {
  const TestMemory memory(MemoryKind::kHeap, sizeof(ControlPage) + 8);
  EXPECT_FALSE(init_control_page(memory.bytes().first(sizeof(ControlPage) - 1)).ok());
  EXPECT_FALSE(init_control_page(memory.bytes().subspan(8)).ok());
  EXPECT_TRUE(init_control_page(memory.bytes()).ok());
}

TEST(ControlPage, keeps_every_lane_on_its_own_cache_line) {
  EXPECT_EQ(sizeof(LaneCounters), 64U);
  EXPECT_EQ(sizeof(ServerCounters), 64U);
  EXPECT_EQ(offsetof(ControlPage, server) % 64, 0U);
  EXPECT_EQ(offsetof(ControlPage, lanes) % 64, 0U);
  EXPECT_EQ(offsetof(ControlPage, scheduler) % 64, 0U);
}

}  // namespace
}  // namespace tandem
