#include "base/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "base/handles.h"

namespace tandem {
namespace {

// Whether the numbers in /proc are those of this process' namespace.
bool proc_is_ours() {
  std::array<char, 32> target;
  const ssize_t length = ::readlink("/proc/self", target.data(), target.size());
  int pid = 0;
  return length > 0 && std::from_chars(target.data(), target.data() + length, pid).ec == std::errc() &&
         pid == ::getpid();
}

// The letter in /proc/PID/stat, or none. Rather than waitid(WSTOPPED | WNOWAIT): that sees children only, and never one
// that a debugger holds.
std::optional<char> state_of(int pid) {
  if (pid <= 0 || !proc_is_ours()) return std::nullopt;
  const FileDescriptor file(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> bytes;
  const ssize_t length = file.valid() ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  const std::string_view text(bytes.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  // "pid (name) state ...", and the name may hold anything.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return std::nullopt;
  return text[name_end + 2];
}

}  // namespace

bool is_stopped(int pid) {
  const std::optional<char> state = state_of(pid);
  return state == 'T' || state == 't';
}

bool is_traced(int pid) { return state_of(pid) == 't'; }

}  // namespace tandem
