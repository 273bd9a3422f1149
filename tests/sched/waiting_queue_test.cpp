#include "sched/waiting_queue.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sched/test_requests.h"

namespace tandem {
namespace {

constexpr std::int64_t kNsPerToken = 1'000'000;

// Sequences that stay where they are.
class WaitingQueueTest : public ::testing::Test {
 protected:
  Sequence& make(std::int32_t priority, std::int64_t arrival_us, std::size_t prompt_tokens = 4) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.request = test::make_request(sequences_.size(), prompt_tokens, 1);
    sequence.request.priority = priority;
    sequence.request.arrival_us = arrival_us;
    return sequence;
  }
  Sequence& insert(std::int32_t priority, std::int64_t arrival_us, std::size_t prompt_tokens = 4) {
    Sequence& sequence = make(priority, arrival_us, prompt_tokens);
    queue_.insert(sequence, kNsPerToken);
    return sequence;
  }
  // In order; empties the queue.
  std::vector<std::uint64_t> drain() {
    std::vector<std::uint64_t> ids;
    while (Sequence* first = queue_.first()) {
      ids.push_back(first->request.id.value);
      queue_.erase(*first);
    }
    return ids;
  }

  WaitingQueue queue_;
  std::deque<Sequence> sequences_;
};

TEST_F(WaitingQueueTest, gives_the_most_urgent_first_and_equals_by_age) {
  EXPECT_EQ(queue_.first(), nullptr);
  insert(0, 500);
  insert(0, 100);
  insert(1, 900);
  insert(0, 100);
  EXPECT_EQ(queue_.size(), 4U);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{3, 2, 4, 1}));
  EXPECT_EQ(queue_.size(), 0U);
}

TEST_F(WaitingQueueTest, a_follower_is_out_of_the_order_until_its_blocks_are_published) {
  Sequence& leader = make(0, 0);
  Sequence& far = insert(0, 100);
  Sequence& near = insert(0, 200);
  insert(0, 300);
  queue_.follow(far, leader, 9);
  queue_.follow(near, leader, 5);
  EXPECT_EQ(queue_.size(), 3U);
  EXPECT_EQ(queue_.first()->request.id, SequenceId{4});
  queue_.release(leader, 4);
  EXPECT_EQ(queue_.first()->request.id, SequenceId{4}) << "5 were awaited";
  queue_.release(leader, 5);
  EXPECT_EQ(queue_.first(), &near);
  EXPECT_EQ(near.leader, nullptr);
  queue_.release(leader, 8);
  EXPECT_EQ(queue_.first(), &near) << "9 were awaited";
  queue_.release(leader, 9);
  EXPECT_EQ(queue_.size(), 3U);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{2, 3, 4}));
}

TEST_F(WaitingQueueTest, release_all_frees_whoever_waits_for_a_leader_and_nobody_else) {
  Sequence& leader = make(0, 0);
  Sequence& other = make(0, 0);
  queue_.follow(insert(0, 100), leader, 5);
  queue_.follow(insert(0, 200), leader, 6);
  queue_.follow(insert(0, 300), other, 5);
  queue_.release_all(leader);
  EXPECT_EQ(queue_.size(), 3U);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{3, 4}));
  EXPECT_EQ(queue_.size(), 1U);
  queue_.release_all(other);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{5}));
}

TEST_F(WaitingQueueTest, a_leader_knows_the_most_urgent_of_its_followers) {
  Sequence& leader = make(0, 0);
  EXPECT_FALSE(leader.follower);
  Sequence& less = insert(0, 100);
  Sequence& more = insert(2, 100);
  queue_.follow(less, leader, 5);
  EXPECT_EQ(leader.follower->id, less.request.id);
  queue_.follow(more, leader, 7);
  EXPECT_EQ(leader.follower->id, more.request.id);
  queue_.erase(more);  // cancelled
  EXPECT_EQ(leader.follower->id, less.request.id);
  EXPECT_EQ(queue_.size(), 1U);
  queue_.release(leader, 5);
  EXPECT_FALSE(leader.follower);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{less.request.id.value}));
}

// At 1 ms a token the short prompt, which came later, passes the long one; at 10 us a token it came too late for that.
TEST_F(WaitingQueueTest, another_prefill_speed_makes_the_order_anew) {
  Sequence& leader = make(0, 0);
  for (int i = 0; i < 2; ++i) {
    insert(0, 0, 1000);
    insert(0, 1'000'000, 10);
  }
  queue_.follow(sequences_[3], leader, 5);
  queue_.follow(sequences_[4], leader, 5);
  EXPECT_EQ(queue_.first(), &sequences_[2]);
  EXPECT_EQ(leader.follower->id, sequences_[4].request.id);
  queue_.reorder(kNsPerToken / 100);
  EXPECT_EQ(queue_.first(), &sequences_[1]);
  EXPECT_EQ(leader.follower->id, sequences_[3].request.id);
  queue_.release_all(leader);
  EXPECT_EQ(drain(), (std::vector<std::uint64_t>{2, 4, 3, 5}));
}

// Against a plain list.
TEST_F(WaitingQueueTest, random_use_agrees_with_a_list) {
  std::mt19937 random(1);
  std::vector<Sequence*> leaders;
  for (int i = 0; i < 3; ++i) leaders.push_back(&make(0, 0));
  std::vector<Sequence*> ordered;
  std::vector<Sequence*> following;
  const auto check = [&] {
    ASSERT_EQ(queue_.size(), ordered.size() + following.size());
    const auto first = std::ranges::min_element(ordered, [](const Sequence* a, const Sequence* b) {
      return more_urgent(urgency_of(a->queue_view(), kNsPerToken), urgency_of(b->queue_view(), kNsPerToken));
    });
    ASSERT_EQ(queue_.first(), first == ordered.end() ? nullptr : *first);
  };
  for (int i = 0; i < 5000; ++i) {
    switch (random() % 4) {
      case 0:
        ordered.push_back(&insert(static_cast<std::int32_t>(random() % 3), static_cast<std::int64_t>(random() % 9)));
        break;
      case 1:
        if (!ordered.empty()) {
          queue_.follow(*ordered.back(), *leaders[random() % 3], random() % 20);
          following.push_back(ordered.back());
          ordered.pop_back();
        }
        break;
      case 2: {
        std::vector<Sequence*>& from = random() % 2 == 0 ? ordered : following;
        if (from.empty()) break;
        std::swap(from[random() % from.size()], from.back());
        queue_.erase(*from.back());
        EXPECT_EQ(from.back()->leader, nullptr);
        from.pop_back();
        break;
      }
      default: {
        Sequence* const leader = leaders[random() % 3];
        const auto published = static_cast<std::uint32_t>(random() % 25);
        for (std::size_t at = following.size(); at-- > 0;) {
          if (following[at]->leader != leader || following[at]->awaited_blocks > published) continue;
          ordered.push_back(following[at]);
          following.erase(following.begin() + static_cast<std::ptrdiff_t>(at));
        }
        queue_.release(*leader, published);
      }
    }
    check();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem
