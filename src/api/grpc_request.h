// tandem.v1.GenerateRequest as a Request: fields are mapped, not checked (api/request_check.h). Pure functions, any
// thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/engine.h"
#include "tandem/request.h"

namespace tandem {

namespace v1 {
class GenerateRequest;
}

// Fails without a prompt, and with NotFound for another model than `model`.
absl::StatusOr<Request> read_request(const v1::GenerateRequest& from, const ModelInfo& model);

// The engine's refusal of a request that was read from `from`, with the field as the message calls it:
// sampling.temperature, chat.messages[2].role.
absl::Status in_grpc_names(const absl::Status& status, const v1::GenerateRequest& from);

}  // namespace tandem
