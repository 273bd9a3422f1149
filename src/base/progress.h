// Progress of a long job: one line rewritten in place on a terminal, log lines now and then otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

class Progress final {
 public:
  explicit Progress(std::string label);
  // Bytes done of `total`. Cheap to call often.
  void update(std::size_t done, std::size_t total);
  // Says how long it took.
  void finish(std::size_t total);

 private:
  std::string label_;
  bool terminal_;
  std::int64_t start_us_;
  std::int64_t next_report_us_;
};

}  // namespace tandem
