// Reports the progress of a long job, such as packing weights. On a terminal it rewrites one line in place; elsewhere
// it writes a log line every few seconds. Owned and used by the thread that does the job.
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
