// The children are this test binary, told to run one of the cases whose names begin with "AsChild".
#include "process/child_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace tandem {
namespace {

TEST(AsChild, DISABLED_exits_with_7) { ::_exit(7); }
TEST(AsChild, DISABLED_waits) { ::pause(); }
TEST(AsChild, DISABLED_counts_descriptors) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  ::_exit(count > 4 ? 1 : 0);  // the standard three and the folder's own
}
TEST(AsChild, DISABLED_has_usr1_unblocked) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  ::_exit(::sigismember(&blocked, SIGUSR1));
}

absl::StatusOr<ChildProcess> spawn(const std::string& name) {
  return ChildProcess::spawn({"--gtest_also_run_disabled_tests", "--gtest_filter=AsChild.DISABLED_" + name});
}

TEST(ChildProcess, tells_how_it_ended) {
  auto child = spawn("exits_with_7");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_GT(child->pid(), 0);
  const auto end = child->wait(-1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->cause, ProcessEnd::Cause::kExit);
  EXPECT_EQ(end->how, "exit code 7");
  EXPECT_FALSE(child->running());
}

TEST(ChildProcess, tells_which_signal_ended_it) {
  auto child = spawn("waits");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_FALSE(child->wait(0));
  EXPECT_FALSE(child->ended());
  EXPECT_TRUE(child->running());
  child->signal(SIGTERM);
  pollfd ended{child->pidfd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, 10'000), 1) << "the pidfd becomes readable";
  EXPECT_TRUE(child->ended());
  const auto end = child->wait(-1);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->cause, ProcessEnd::Cause::kSignal);
  EXPECT_EQ(end->how, "signal 15 (Terminated)");
}

TEST(ChildProcess, kills_and_reaps_the_process_when_dropped_or_replaced) {
  int first = 0;
  int second = 0;
  {
    auto one = spawn("waits");
    auto two = spawn("waits");
    ASSERT_TRUE(one.ok() && two.ok());
    first = one->pid();
    second = two->pid();
    *one = *std::move(two);
    EXPECT_EQ(::kill(first, 0), -1) << "reaped";
    EXPECT_EQ(one->pid(), second);
    EXPECT_EQ(::kill(second, 0), 0);
    ChildProcess moved = *std::move(one);
    EXPECT_FALSE(one->running());  // NOLINT(bugprone-use-after-move): it is empty now
    EXPECT_EQ(::kill(second, 0), 0);
  }
  EXPECT_EQ(::kill(second, 0), -1);
}

TEST(ChildProcess, inherits_no_descriptor_but_the_standard_three) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);  // without close-on-exec
  auto child = spawn("counts_descriptors");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->wait(-1)->how, "exit code 0");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(ChildProcess, starts_with_no_signal_blocked) {
  std::thread([] {
    sigset_t usr1;
    ::sigemptyset(&usr1);
    ::sigaddset(&usr1, SIGUSR1);
    ::pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
    auto child = spawn("has_usr1_unblocked");
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(child->wait(-1)->how, "exit code 0");
  }).join();
}

TEST(ChildProcess, that_never_was_has_nothing_to_tell) {
  ChildProcess none;
  EXPECT_FALSE(none.running());
  EXPECT_FALSE(none.ended());
  none.signal(SIGKILL);
  EXPECT_TRUE(none.wait(-1));
}

}  // namespace
}  // namespace tandem
