#include "api/request_id.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "base/status.h"
#include "fmt/format.h"

namespace tandem {

std::string random_hex128() {
  std::array<unsigned char, 16> bytes{};
  TANDEM_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "the system's random source works");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string request_id(std::string_view own) {
  constexpr std::size_t kMaxBytes = 128;
  const bool good =
      !own.empty() && own.size() <= kMaxBytes && std::ranges::all_of(own, [](char c) { return c > ' ' && c <= '~'; });
  return good ? std::string(own) : "req-" + random_hex128();
}

}  // namespace tandem
