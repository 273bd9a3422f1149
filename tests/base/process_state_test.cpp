#include "base/process_state.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace tandem {
namespace {

// A child that does nothing until it is killed.
class Sleeper final {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  ~Sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  int pid() const { return pid_; }
  // Sends a signal and waits until the child is in the state that it leads to.
  bool comes_to(int number, bool stopped) const {
    ::kill(pid_, number);
    for (int i = 0; i < 5000 && is_stopped(pid_) != stopped; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return is_stopped(pid_) == stopped;
  }

 private:
  pid_t pid_;
};

TEST(ProcessState, a_stopped_process_is_seen_and_one_that_goes_on_too) {
  const Sleeper child;
  EXPECT_FALSE(is_stopped(child.pid()));
  EXPECT_TRUE(child.comes_to(SIGSTOP, true));
  EXPECT_FALSE(is_traced(child.pid()));
  EXPECT_TRUE(child.comes_to(SIGCONT, false));
}

TEST(ProcessState, a_debugger_stops_as_a_signal_does) {
  const Sleeper child;
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0) << "tracing is not allowed here";
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, child.pid(), nullptr, nullptr), 0);
  ASSERT_EQ(::waitpid(child.pid(), nullptr, 0), child.pid());
  EXPECT_TRUE(is_stopped(child.pid()));
  EXPECT_TRUE(is_traced(child.pid()));
  ASSERT_EQ(::ptrace(PTRACE_CONT, child.pid(), nullptr, nullptr), 0);
  EXPECT_TRUE(child.comes_to(0, false));
}

TEST(ProcessState, of_no_process_nothing_is_said) {
  int ended = 0;
  {
    const Sleeper child;
    ended = child.pid();
  }
  EXPECT_FALSE(is_stopped(ended));
  EXPECT_FALSE(is_stopped(0));
  EXPECT_FALSE(is_stopped(-1));
  EXPECT_FALSE(is_stopped(::getpid()));
}

TEST(StopDetector, is_certain_after_some_looks_in_a_row) {
  const Sleeper child;
  StopDetector detector;
  ASSERT_TRUE(child.comes_to(SIGSTOP, true));
  for (std::uint32_t i = 1; i < StopDetector::kLooks; ++i) EXPECT_FALSE(detector.poll(child.pid()));
  ASSERT_TRUE(child.comes_to(SIGCONT, false));
  EXPECT_FALSE(detector.poll(child.pid())) << "it went on in time";
  ASSERT_TRUE(child.comes_to(SIGSTOP, true));
  for (std::uint32_t i = 1; i < StopDetector::kLooks; ++i) EXPECT_FALSE(detector.poll(child.pid()));
  EXPECT_TRUE(detector.poll(child.pid()));
  EXPECT_TRUE(detector.poll(child.pid()));
  ASSERT_TRUE(child.comes_to(SIGCONT, false));
  EXPECT_FALSE(detector.poll(child.pid()));
}

}  // namespace
}  // namespace tandem
