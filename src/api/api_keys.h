// Who may call, and what each caller may ask for. One list of keys serves both front ends: a key stands for a tenant,
// and bounds the priority of its requests. Immutable after construction, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/request.h"

namespace tandem {

struct ApiKey {
  std::string key;
  std::optional<std::int32_t> max_priority = {};  // absent: no bound
};

// Who sent a request.
struct Caller {
  std::string tenant;                        // the same for every request with one key; empty without keys
  std::optional<std::int32_t> max_priority;  // absent: no bound
};

// Keys are kept and compared as digests, in time that depends on neither the key nor the guess.
class ApiKeys final {
 public:
  // Without keys anybody may call, as one tenant, up to `max_priority`.
  explicit ApiKeys(const std::vector<ApiKey>& keys, std::optional<std::int32_t> max_priority = {});
  bool required() const { return !entries_.empty(); }
  // Who presents this Authorization header of scheme Bearer (in any case); nullopt: a key is required, and the header
  // has none or a wrong one.
  std::optional<Caller> caller(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    Caller caller;
  };
  std::vector<Entry> entries_;
  Caller anybody_;
};

// Puts the caller's name on a request and lowers its priority to what the caller may ask for. The priority that it gets
// instead of the one it asked for, if that was higher; such requests are logged at level debug.
std::optional<std::int32_t> attribute(const Caller& caller, Request& request);

}  // namespace tandem
