// The gRPC front end: tandem.v1.Inference and tandem.v1.Admin (proto/tandem/v1/inference.proto), grpc.health.v1 and
// reflection. Borrows the engine, which outlives it. Calls run on gRPC's threads; all state of a call is under its own
// mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/api_keys.h"
#include "tandem/engine.h"

namespace tandem {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port
  std::vector<ApiKey> api_keys;  // empty: no authentication; else metadata "authorization: Bearer KEY"
  std::optional<std::int32_t> max_priority;  // of requests without a key; absent: no bound
  std::string admin_api_key;                 // of the Admin service; empty: any of api_keys
  std::uint64_t max_message_bytes = std::uint64_t{16} << 20;
};

class GrpcServer final {
 public:
  // Listens and serves at once.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> create(const GrpcOptions& options, Engine& engine);
  ~GrpcServer();  // stop()

  std::uint16_t port() const;
  // For a drain: health says NOT_SERVING; what runs goes on, and the engine refuses what is new.
  void stop_accepting();
  // Ends what still runs and returns when every call is over.
  void stop();

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
