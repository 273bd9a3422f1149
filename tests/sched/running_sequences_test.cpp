#include "sched/running_sequences.h"

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sched/test_requests.h"
#include "support/heap_instance.h"

namespace tandem {
namespace {

// Sequences come, change phase and length, and go; the lists and counts are those of a plain list.
TEST(RunningSequences, random_use_agrees_with_a_list) {
  constexpr std::size_t kSequences = 12;
  test::HeapInstance instance(400, test::kBlockTokens, 1);
  std::deque<Sequence> sequences(kSequences);
  for (std::size_t i = 0; i < kSequences; ++i) sequences[i].request = test::make_request(i + 1, 4, 1);
  RunningSequences running;
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    Sequence& sequence = sequences[random() % kSequences];
    if (!sequence.place) {
      if (random() % 2 == 0) sequence.lease = *instance.pool->reserve(sequence.request.id, 3, Phase::kDecode);
      running.add(sequence);
    } else if (random() % 3 == 0) {
      running.remove(sequence);
      sequence.lease = KvLease();
      sequence.output.clear();
      sequence.computed = 0;
    } else {
      if (random() % 2 == 0) {
        sequence.output = {5};
        sequence.computed = sequence.computed == 4 ? 3 : 4;
      }
      if (!sequence.lease.blocks().empty() && sequence.lease.blocks().size() < 20) {
        ASSERT_TRUE(instance.pool->grow(sequence.lease, 1, Phase::kDecode).ok());
      }
      running.update(sequence);
    }
    std::vector<Sequence*> all;
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      std::vector<Sequence*> expected;
      std::uint32_t num_blocks = 0;
      for (Sequence& each : sequences) {
        if (!each.place || each.phase() != phase) continue;
        expected.push_back(&each);
        num_blocks += static_cast<std::uint32_t>(each.lease.blocks().size());
      }
      std::vector<Sequence*> found(running.of(phase).begin(), running.of(phase).end());
      std::ranges::sort(found);
      std::ranges::sort(expected);
      ASSERT_EQ(found, expected);
      ASSERT_EQ(running.num_blocks(phase), num_blocks);
      all.insert(all.end(), expected.begin(), expected.end());
    }
    ASSERT_EQ(running.size(), all.size());
    std::vector<Sequence*> found = running.all();
    std::ranges::sort(found);
    std::ranges::sort(all);
    ASSERT_EQ(found, all);
  }
}

}  // namespace
}  // namespace tandem
