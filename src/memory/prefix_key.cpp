#include "memory/prefix_key.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>

#include "base/status.h"

namespace tandem {
namespace {

// SHA-256 of the parts, each after its length, so that no two lists of parts read alike.
PrefixKey hash(std::initializer_list<std::span<const std::byte>> parts) {
  struct Deleter {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Deleter> context(EVP_MD_CTX_new());
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const auto part : parts) {
    const std::uint64_t size = part.size();
    ok = ok && EVP_DigestUpdate(context.get(), &size, sizeof(size)) == 1;
    ok = ok && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1;
  TANDEM_CHECK(ok, "SHA-256 is always there");
  PrefixKey key;
  std::memcpy(&key.high, digest.data(), sizeof(key.high));
  std::memcpy(&key.low, digest.data() + sizeof(key.high), sizeof(key.low));
  return key;
}

}  // namespace

PrefixKey prefix_root(std::string_view model, std::string_view salt) {
  return hash({std::as_bytes(std::span(model)), std::as_bytes(std::span(salt))});
}

PrefixKey prefix_key(const PrefixKey& parent, std::span<const TokenId> tokens) {
  return hash({std::as_bytes(std::span(&parent, 1)), std::as_bytes(tokens)});
}

}  // namespace tandem
