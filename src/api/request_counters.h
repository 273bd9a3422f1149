// The counters of requests, each request counted once: refused, or accepted and later finished. The front ends count
// what they refuse themselves, the engine what it refuses or accepts, the output pipeline how a request ended; each
// makes its own handles of the same series. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/metrics.h"

namespace tandem {

struct RequestCounters {
  enum Reason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

  explicit RequestCounters(MetricRegistry& metrics)
      : accepted(metrics.counter("tandem_requests_accepted_total",
                                 "Requests that the engine accepted; each ends once, as "
                                 "tandem_requests_finished_total counts")),
        refused(metrics.counter("tandem_requests_refused_total",
                                "Requests that were not accepted: malformed, too long, the queue full, the server "
                                "draining")) {
    const char* const reasons[4] = {"stop", "length", "cancelled", "failed"};
    for (std::size_t reason = 0; reason < 4; ++reason) {
      finished[reason] =
          metrics.counter("tandem_requests_finished_total",
                          "Accepted requests that ended, each once, by reason: stop; length: a choice was cut off; "
                          "cancelled by the client; failed",
                          {{"reason", reasons[reason]}});
    }
  }

  Counter accepted, refused;
  Counter finished[4];  // by Reason
};

}  // namespace tandem
